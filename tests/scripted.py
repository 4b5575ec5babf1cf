"""One session of a protocol without a server: models that answer by a function, and all results."""

import asyncio
from dataclasses import dataclass

from fake_openai import coded

from litbench.judges.answers import Answer, text_of
from litbench.judges.session import Session


class Scripted:
    """A model that answers by its function of a request; `requests` has what it was asked."""

    def __init__(self, answer):
        self.reply = answer
        self.requests = []

    async def __call__(self, request):
        self.requests.append(request)
        result = self.reply(request)
        if isinstance(result, Answer):
            return result
        return Answer("answered", coded(text_of(request.messages), result))


@dataclass
class Results:
    """What a session adds to the tables, of all judges."""

    texts: dict
    ratings: dict
    grades: list
    events: list


def results_of(protocol, item, models, judges, writer="w"):
    """Write about an item and have all judges rate it."""

    async def script(session):
        written = await protocol.write(session, item)
        judged = {judge: await protocol.rate(session, item, written, judge) for judge in judges}
        every = [written, *judged.values()]
        return Results(
            written.texts,
            {
                (judge, step): rated
                for judge in judges
                for step, rated in judged[judge].ratings.items()
            },
            [grade for part in every for grade in part.grades],
            [event for part in every for event in part.events],
        )

    # inspect-ai may replace `asyncio.run` by one that leaves its loop open.
    with asyncio.Runner() as runner:
        return runner.run(
            script(Session(writer, item.prompt_id, 0, script, models=models, seed="of the tests"))
        )
