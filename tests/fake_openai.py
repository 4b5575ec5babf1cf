"""A server on loopback that speaks OpenAI's chat interface, with planted faults and manners.

    with FakeOpenAI(faults=lambda number, kind: "500" if number < 3 else None) as server:
        ask(server.model, ...)

While it runs, the environment of this process leads to it.

A fault belongs to a request by its number: another comes when it is sent again. Manners belong to a
question and stay: the server refuses it, cuts its answer off or rambles whenever it is asked.
"""

import base64
import json
import os
import re
import time
from collections import Counter

from loopback import Handler, Loopback

from litbench.data.text import digest
from litbench.raters.templates.parser import CODE

# Never to be seen in any output.
KEY = "planted-key-of-the-fake-openai"
# What may stand before the @ of its address instead.
LOGIN = "somebody:password-of-the-proxy"
LOGIN_SENT = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
FAULTS = (
    "429",
    "429 later",
    "500",
    "503",
    "hang",
    "reset",
    "cut",
    "empty",
    "no json",
    "wrong types",
)
MANNERS = ("refusal", "filter", "length", "rambling", "no choice")


def shown_story(question, label):
    """The story of a rendered question that stands as `label`."""
    result = re.search(
        rf"STORY {label} BEGINS =====\n(.*?)\n===== STORY {label} ENDS", question, re.DOTALL
    )
    assert result is not None, "a question made by a packaged template"
    return result[1]


def longer_story(question):
    """Judge as one who likes the longer story."""
    longer = "A" if len(shown_story(question, "A")) >= len(shown_story(question, "B")) else "B"
    return f"Story {longer} goes on for longer, and so there is more of it.\n\nPreferred: {longer}"


def coded(question, answer):
    """An answer with the code that its question asks for."""
    code = re.search(rf'\[({CODE})\]|"code": "({CODE})"', question)
    if code is None or not isinstance(answer, str):
        return answer
    mark = f"[{code[1] or code[2]}]"
    if code[2]:
        return re.sub(r"\}(?=[^{}]*$)", f', "code": "{code[2]}"}}', answer)
    if "Preferred" not in answer:
        # Ratings: lines below [Scores], tags, or a number in brackets.
        answer = re.sub(r"(</\S+>)", rf"\1 {mark}", answer)
        before, scores, lines = answer.partition("[Scores]")
        answer = before + scores + re.sub(r"(?<=\w)(?=: )", f" {mark}", lines)
    answer = re.sub(r"Preferred(?=:)|Score(?=: \[)", rf"\g<0> {mark}", answer)
    return answer.replace('"preferred"', f'"preferred {mark}"')


def uncoded(question):
    """A question without its code, so that answers depend on its content alone."""
    return re.sub(rf'(?:, the code)? ?\[{CODE}\]|, "code": "{CODE}"', "", question)


def asked_text(messages):
    """The text of a question; of the first one where an unread answer is asked for again."""
    return messages[0 if messages[-1]["content"].startswith("Reply with") else -1]["content"]


def drawn_manners(seed, share):
    """Draw a manner, or none, for each question by its text."""

    def draw(question):
        number = int(digest(seed, question), 16)
        return MANNERS[number // 1_000 % len(MANNERS)] if number % 1_000 < 1_000 * share else None

    return draw


class FakeOpenAI(Loopback):
    """The server; a context manager.

    Attributes:
        model: the name under which inspect-ai finds it.
        requests: how many came in.
        asked: requests by question, the faulty ones too.
        answered: good answers by question, refusals and the like too.
        faults: faulty answers by their kind.
        bodies: what the last request of each question said.
        files: the questions of each batch.
        name: the model's name in its answers.
        refusal: what it says when it refuses.
        count: tokens read and written, of a question and its answer; words unless it is replaced.
        report: what an answer says about its usage, of what is billed; null for nothing.
        billed_faults: faults that are billed as an answer of `max_tokens` would be.
        max_at_once: most requests under way at one time.
    """

    model = "openai-api/fake/judge"

    def __init__(
        self,
        answer=longer_story,
        *,
        others=None,
        faults=lambda _number, _kind: None,
        manners=lambda _question: None,
        on_request=lambda _number, _moment: None,
        seconds=0.0,
        hang_seconds=5.0,
        retry_after="0.05",
        complaint="not well today",
        code=None,
        question_of=asked_text,
    ):
        """A server that is not started yet.

        `others` are further models by name. `faults` gives the fault of a request, one of `FAULTS`
        or "400", by its number (from 1) and "chat"; `manners` that of a question: one of `MANNERS`,
        "limit" (whole, and as long as it may be), "filter later" (whole, and filtered at the
        end), a status with the content of the response, or a function that changes a good response.
        `on_request` is called with a request's number before and after its answer.
        `complaint` and `code` are said at "400", "500" and "503".
        `question_of` gives the text of a request's messages, which is answered and counted.
        """
        self.answers = {"judge": answer, **(others or {})}
        self.draw = faults
        self.manners = manners
        self.on_request = on_request
        self.seconds = seconds
        self.hang_seconds = hang_seconds
        self.retry_after = retry_after
        self.complaint = complaint
        self.code = code
        self.question_of = question_of
        self.requests = 0
        self.asked = Counter()
        self.answered = Counter()
        self.faults = Counter()
        self.bodies = {}
        self.files = {}
        self.name = "judge-1"
        self.refusal = "I would rather not judge this."
        self.count = lambda question, answer: (len(question.split()), len(answer.split()))
        self.report = lambda usage: usage
        self.billed_faults = ()
        self.billed = [0, 0]
        self.under_way = 0
        self.max_at_once = 0
        super().__init__(_Handler)
        self.url += "/v1"

    def __enter__(self):
        self._before = {name: os.environ.get(name) for name in self.environment()}
        os.environ.update(self.environment())
        return super().__enter__()

    def __exit__(self, *error):
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        super().__exit__(*error)

    def environment(self):
        """Environment variables that bring a client here."""
        return {"FAKE_BASE_URL": self.url, "FAKE_API_KEY": KEY}

    def dollars(self, price):
        """What the requests so far cost, those with an empty answer too."""
        return price.of(*self.billed)

    def batch(self, name):
        """The batch of a file; done at once."""
        counts = len(self.files[name])
        return {
            "id": f"batch-{name}",
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "input_file_id": name,
            "output_file_id": f"answers-{name}",
            "completion_window": "24h",
            "status": "completed",
            "created_at": 1,
            "request_counts": {"total": counts, "completed": counts, "failed": 0},
        }

    @staticmethod
    def model_called(name):
        """The name under which inspect-ai finds one of the others."""
        return f"openai-api/fake/{name}"


class _Handler(Handler):
    def do_POST(self):
        fake = self.server.fake
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if len(data) < int(self.headers["Content-Length"]):
            # Whoever asked was killed in the middle of the question.
            self.close_connection = True
            return
        if self.path in ("/v1/files", "/v1/batches"):
            self._take_batch(data)
            return
        body = json.loads(data)
        if self.headers["Authorization"] not in (f"Bearer {KEY}", LOGIN_SENT):
            token = self.headers["Authorization"].removeprefix("Bearer ")
            self._send(401, {"error": {"message": f"Incorrect API key provided: {token}"}})
            return
        if self.path != "/v1/chat/completions" or body["model"] not in fake.answers:
            self._send(404, {"error": {"message": f"no model {body['model']} at {self.path}"}})
            return
        question = fake.question_of(body["messages"])
        with fake.lock:
            fake.requests += 1
            number = fake.requests
            fake.asked[question] += 1
            fake.bodies[question] = body
            fake.under_way += 1
            fake.max_at_once = max(fake.max_at_once, fake.under_way)
        try:
            fake.on_request(number, "before")
            fault = fake.draw(number, "chat")
            if fault is not None:
                with fake.lock:
                    fake.faults[fault] += 1
                    if fault in fake.billed_faults:
                        fake.billed[0] += fake.count(question, "")[0]
                        fake.billed[1] += body["max_tokens"]
                self._fail(fault)
                return
            time.sleep(fake.seconds)
            with fake.lock:
                fake.answered[question] += 1
            self._answer(question, body)
            fake.on_request(number, "after")
        finally:
            with fake.lock:
                fake.under_way -= 1

    def _take_batch(self, data):
        """Take a file of questions, or say that a batch of them is done."""
        fake = self.server.fake
        if self.path == "/v1/batches":
            self._send(200, fake.batch(json.loads(data)["input_file_id"]))
            return
        lines = [line for line in data.splitlines() if line.startswith(b'{"custom_id"')]
        with fake.lock:
            name = f"file-{len(fake.files)}"
            fake.files[name] = [json.loads(line) for line in lines]
        about = {"filename": "batch.jsonl", "purpose": "batch", "status": "processed"}
        self._send(200, {"id": name, "object": "file", "bytes": 1, "created_at": 1, **about})

    def do_GET(self):
        fake = self.server.fake
        _, _, kind, name, *rest = self.path.split("/")
        name = name.removeprefix("batch-").removeprefix("answers-")
        if kind == "batches":
            self._send(200, fake.batch(name))
            return
        assert (kind, rest) == ("files", ["content"]), self.path
        lines = []
        for file in fake.files[name]:
            body = file["body"]
            (message,) = body["messages"]
            with fake.lock:
                fake.asked[message["content"]] += 1
                fake.bodies[message["content"]] = body
            question = message["content"]
            answer = coded(question, fake.answers[body["model"]](uncoded(question)))
            choice = ({"role": "assistant", "content": answer}, "stop")
            response = {"status_code": 200, "body": self._completion(message["content"], [choice])}
            lines.append({"custom_id": file["custom_id"], "response": response, "error": None})
        self._send_bytes(200, "\n".join(map(json.dumps, lines)).encode(), {})

    def _answer(self, question, body):
        fake = self.server.fake
        manner = fake.manners(uncoded(question))
        if isinstance(manner, tuple):
            self._send(*manner)
            return
        text = coded(question, fake.answers[body["model"]](uncoded(question)))
        message = {"role": "assistant", "content": text}
        reasons = {
            "filter": "content_filter",
            "filter later": "content_filter",
            "length": "length",
            "limit": "length",
        }
        if manner == "refusal":
            message |= {"content": None, "refusal": fake.refusal}
        elif manner == "filter":
            message["content"] = ""
        elif manner == "length":
            message["content"] = text[: len(text) // 2]
        elif manner == "rambling":
            message["content"] = "Both are good. Preferred: whichever you like."
        choices = [] if manner == "no choice" else [(message, reasons.get(manner, "stop"))]
        self._complete(question, choices, manner if callable(manner) else lambda content: content)

    def _complete(self, question, choices, change=lambda content: content):
        content = self._completion(question, choices)
        fake = self.server.fake
        with fake.lock:
            fake.billed[0] += content["usage"]["prompt_tokens"]
            fake.billed[1] += content["usage"]["completion_tokens"]
        content["usage"] = fake.report(content["usage"])
        self._send(200, change(content))

    def _completion(self, question, choices):
        texts = [message["content"] or "" for message, _ in choices]
        read, written = self.server.fake.count(question, " ".join(texts))
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": self.server.fake.name,
            "choices": [
                {"index": index, "message": message, "finish_reason": reason}
                for index, (message, reason) in enumerate(choices)
            ],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
                "prompt_tokens_details": {"cached_tokens": 7},
            },
        }

    def _fail(self, fault):
        fake = self.server.fake
        if fault.startswith("429"):
            headers = {"Retry-After": fake.retry_after} if fault == "429 later" else {}
            self._send(429, {"error": {"message": "slow down"}}, headers)
        elif fault in ("400", "500", "503"):
            self._send(int(fault), {"error": {"message": fake.complaint, "code": fake.code}})
        elif fault == "hang":
            fake.closing.wait(fake.hang_seconds)
            self.close_connection = True
        elif fault == "reset":
            self.reset()
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"id": "chatcm')
            self.close_connection = True
        elif fault == "wrong types":
            usage = {"prompt_tokens": "12", "completion_tokens": True}
            self._send(200, {"id": 1, "model": [], "choices": [{"message": 3}], "usage": usage})
        elif fault == "empty":
            self._complete("word " * 20, [({"role": "assistant", "content": ""}, "stop")])
        else:
            assert fault == "no json", fault
            self._send_bytes(200, b"<html>a proxy of somebody</html>", {})

    def _send(self, status, content, headers=None):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._send_bytes(status, data, headers or {})

    def _send_bytes(self, status, data, headers):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def messages_of(messages):
    """The text of all messages, under which the server counts questions."""
    return "\n".join(message["content"] for message in messages)


def stored_keys(folder):
    """Keys of the answers stored in a folder; fails if one of them was asked for again."""
    keys = set()
    for path in folder.glob("*.jsonl"):
        for text in path.read_text().splitlines():
            # A killed program may leave half a line.
            line = json.loads(text) if text.endswith("}") else {"key": None}
            assert line["key"] not in keys, "a stored answer was asked for again"
            if line.get("outcome", "error") != "error":
                keys.add(line["key"])
    return keys
