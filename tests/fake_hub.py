"""A small Hub on loopback that the real huggingface_hub and datasets libraries talk to.

    with FakeHub() as hub:
        hub.publish("owner/name", {"data/train-00000-of-00001.parquet": table_bytes})
        run_program(environment=hub.environment(tmp_path))

The libraries read HF_ENDPOINT when they are imported, so whoever talks to it runs in a process of
its own, with `environment`. It keeps every commit, serves whole files and ranges of them, takes
uploads as plain files and as LFS objects, and notes every request.
"""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow.parquet as pq
from loopback import Handler, Loopback

ROOT = Path(__file__).resolve().parent.parent
# What is stored as LFS objects.
_LARGE = (".parquet", ".safetensors")
TOKEN = "hf_token_of_the_fake_hub"  # noqa: S105


def parquet_bytes(table):
    """A table as the bytes of a Parquet file, in row groups of 100."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=100)
    return buffer.getvalue()


@dataclass
class Repository:
    """One data set or model.

    Attributes:
        commits: files by path, by commit; the first commit is the oldest.
        refs: commit by branch or tag.
        messages: what each commit said.
        private: only who has the token sees it.
        gated: only who has the token may read its files.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    private: bool = False
    gated: bool = False

    def commit(self, files, message):
        """Make these files the head of main; return the commit."""
        text = f"{len(self.commits)}{message}{sorted(files)}"
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = dict(files)
        self.refs["main"] = sha
        self.messages.append(message)
        return sha

    def resolve(self, revision):
        """The commit that a revision stands for."""
        return revision if revision in self.commits else self.refs.get(revision)

    def files(self, revision="main"):
        """The files of a revision."""
        sha = self.resolve(revision)
        assert sha is not None
        return self.commits[sha]


class FakeHub(Loopback):
    """The server; use it as a context.

    Attributes:
        repositories: by owner/name.
        requests: "METHOD /path" of every request, in the order in which they came.
        faults: status to answer with, by a part of the path.
        strange: requests that the fake does not know.
    """

    def __init__(self):
        self.repositories = {}
        self.requests = []
        self.faults = {}
        self.strange = []
        self.stored = {}
        super().__init__(_Handler)

    def publish(self, name, files, **options):
        """Make a commit of a data set or model; return its hash."""
        repository = self.repositories.setdefault(name, Repository())
        for option, value in options.items():
            setattr(repository, option, value)
        return repository.commit(files, f"version {len(repository.commits) + 1}")

    def run(self, home, program, *arguments, token=None):
        """Run a program, or with "-c" some code, in `environment`."""
        command = [program] if program == "-c" else [str(ROOT / program)]
        return subprocess.run(
            [sys.executable, *command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=ROOT,
            check=False,
            env=self.environment(home, token=token),
        )

    def environment(self, home, *, token=None):
        """The environment of a process that talks to this Hub and to nothing else."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return {
            **kept,
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home / "hf-home"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            # Xet's own storage is not faked; the older protocol is.
            "HF_HUB_DISABLE_XET": "1",
            # datasets would import it, for seconds, to see whether it is there.
            "USE_TORCH": "0",
            **({} if token is None else {"HF_TOKEN": token}),
        }


class _Handler(Handler):
    @property
    def hub(self):
        return self.server.fake

    def do_GET(self):
        self._answer()

    def do_HEAD(self):
        self._answer()

    def do_POST(self):
        self._answer()

    def do_PUT(self):
        self._answer()

    # What is asked ---------------------------------------------------------------------------

    def _answer(self):
        url = urlsplit(self.path)
        path = unquote(url.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append(f"{self.command} {path}")
        for part, status in self.hub.faults.items():
            if part in path:
                self._send_json({"error": "as the test wants it"}, status)
                return
        parts = path.strip("/").split("/")
        match parts:
            case ["api", "validate-yaml"]:
                self._send_json({"errors": [], "warnings": []})
            case ["api", "repos", "create"]:
                self._create(json.loads(body))
            case ["api", "datasets" | "models", owner, name, *rest]:
                self._ask(f"{owner}/{name}", rest, body)
            case ["datasets", owner, git, "info", "lfs", "objects", "batch"]:
                self._offer_storage(f"{owner}/{git.removesuffix('.git')}", json.loads(body))
            case [owner, git, "info", "lfs", "objects", "batch"]:
                self._offer_storage(f"{owner}/{git.removesuffix('.git')}", json.loads(body))
            case ["storage", oid]:
                self.hub.stored[oid] = body
                self._send(b"", 200)
            case ["datasets", owner, name, "resolve", revision, *rest]:
                self._serve_file(f"{owner}/{name}", revision, "/".join(rest))
            case [owner, name, "resolve", revision, *rest]:
                self._serve_file(f"{owner}/{name}", revision, "/".join(rest))
            case _:
                self._give_up()

    def _signed_in(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _find(self, name):
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self._signed_in()):
            # The real one does not say which.
            self._send_error(401 if not self._signed_in() else 404, "RepoNotFound")
            return None
        return repository

    def _ask(self, name, rest, body):
        repository = self._find(name)
        if repository is None:
            return
        match rest:
            case []:
                rest = ["revision", "main"]
            case ["preupload" | "commit", *_] if not self._signed_in():
                self._send_error(401, "")
                return
            case ["preupload", _]:
                self._choose_modes(json.loads(body))
                return
            case ["commit", revision]:
                self._commit(name, repository, revision, body)
                return
        kind, where = rest[0], rest[1:]
        # A revision such as refs/pr/1 holds slashes.
        found = [(k, repository.resolve("/".join(where[:k]))) for k in range(len(where), 0, -1)]
        sha, inner = next(((s, where[k:]) for k, s in found if s is not None), (None, []))
        if sha is None:
            self._send_error(404, "RevisionNotFound")
            return
        files = repository.commits[sha]
        match kind:
            case "revision":
                self._send_json(
                    {
                        "_id": "1", "id": name, "author": name.partition("/")[0], "sha": sha,
                        "private": repository.private, "disabled": False, "tags": [],
                        "gated": "auto" if repository.gated else False, "downloads": 0, "likes": 0,
                        "siblings": [{"rfilename": path} for path in files],
                    }
                )  # fmt: skip
            case "tree":
                folder = "/".join(inner)
                self._list(files, folder, recursive="recursive=True" in self.path)
            case "paths-info":
                asked = parse_qs(body.decode())["paths"]
                self._send_json(
                    [entry for path in asked if (entry := _entry(files, path)) is not None]
                )
            case _:
                self._give_up()

    def _list(self, files, folder, *, recursive):
        below = [path for path in files if not folder or path.startswith(f"{folder}/")]
        if folder and not below:
            self._send_error(404, "EntryNotFound")
            return
        start = len(folder) + 1 if folder else 0
        names = set()
        for path in below:
            steps = path[start:].split("/")
            depth = len(steps) if recursive else 1
            names |= {path[:start] + "/".join(steps[:k]) for k in range(1, depth + 1)}
        self._send_json([_entry(files, name) for name in sorted(names)])

    def _serve_file(self, name, revision, path):
        repository = self._find(name)
        if repository is None:
            return
        if repository.gated and not self._signed_in():
            self._send_error(401, "GatedRepo")
            return
        sha = repository.resolve(revision)
        if sha is None:
            self._send_error(404, "RevisionNotFound")
            return
        content = repository.commits[sha].get(path)
        if content is None:
            self._send_error(404, "EntryNotFound", {"X-Repo-Commit": sha})
            return
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": sha,
            "Accept-Ranges": "bytes",
        }
        asked = self.headers.get("Range")
        if asked is None or self.command == "HEAD":
            self._send(content, 200, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(content)) + 1, len(content))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self._send(content[start:stop], 206, headers)

    # What is sent ----------------------------------------------------------------------------

    def _create(self, asked):
        if not self._signed_in():
            self._send_error(401, "")
            return
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        kind = asked.get("type") or "model"
        url = {"url": f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}"}
        if name in self.hub.repositories:
            self._send_json({**url, "error": "You already created this dataset repo"}, 409)
            return
        assert kind in ("dataset", "model")
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.publish(name, {".gitattributes": b"*.parquet lfs\n"}, private=private)
        self._send_json(url)

    def _choose_modes(self, asked):
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(_LARGE) else "regular",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        self._send_json({"files": modes})

    def _offer_storage(self, name, asked):
        assert name in self.hub.repositories
        objects = [
            {
                "oid": thing["oid"],
                "size": thing["size"],
                "actions": {"upload": {"href": f"{self.hub.url}/storage/{thing['oid']}"}},
            }
            for thing in asked["objects"]
        ]
        self._send_json({"transfer": "basic", "objects": objects})

    def _commit(self, name, repository, revision, body):
        files = dict(repository.files(revision))
        message = ""
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            match item["key"]:
                case "header":
                    message = value["summary"]
                    parent = value.get("parentCommit")
                    if parent is not None and parent != repository.resolve(revision):
                        self._send_json({"error": "the head has moved"}, 412)
                        return
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.hub.stored[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
                case _:
                    self._give_up()
                    return
        sha = repository.commit(files, message)
        place = f"{self.hub.url}/datasets/{name}/commit/{sha}"
        self._send_json({"success": True, "commitOid": sha, "commitUrl": place})

    # How it is answered ----------------------------------------------------------------------

    def _give_up(self):
        self.hub.strange.append(f"{self.command} {self.path}")
        self._send_error(404, "EntryNotFound")

    def _send_json(self, content, status=200):
        self._send(json.dumps(content).encode(), status, {"Content-Type": "application/json"})

    def _send_error(self, status, code, more=None):
        headers = {**(more or {}), "X-Error-Message": code or "refused"}
        self._send(b"{}", status, {**headers, **({"X-Error-Code": code} if code else {})})

    def _send(self, body, status, headers=None):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(files, path):
    if path in files:
        content = files[path]
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        entry = {"type": "file", "path": path, "size": len(content), "oid": oid}
        if path.endswith(_LARGE):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
        return entry
    if any(name.startswith(f"{path}/") for name in files):
        return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}
    return None
