"""Manifests of folders whose files a test changed."""

from litbench.runs.outputs import file_digest, read_manifest, write_sealed


def list_outputs(folder):
    """Update the digests in the manifest of a folder."""
    files = [path for path in folder.iterdir() if path.name != "manifest.json"]
    outputs = {path.name: {"sha256": file_digest(path)} for path in files}
    write_sealed({**read_manifest(folder), "outputs": outputs}, folder / "manifest.json")
