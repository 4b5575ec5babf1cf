"""The programs of data_prep, train and eval, and their configs, as an installed package has them.

In a checkout they are the folders of these names at the top level.
"""
