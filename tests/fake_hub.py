"""A small Hub on loopback that the real huggingface_hub and datasets libraries talk to.

    with FakeHub() as hub:
        hub.publish("owner/name", {"data/train-00000-of-00001.parquet": table_bytes})
        done = hub.run(tmp_path, "data_prep/make_stories.py", "--input", "owner/name")

The libraries read HF_ENDPOINT when they are imported, so whoever talks to it runs in a process of
its own. It keeps every commit, serves files and ranges of them, takes uploads as plain files and as
LFS objects, and notes every request.
"""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
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
        private: only who has the token sees it.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False

    def commit(self, files):
        """Make these files the head of main; return the commit."""
        text = f"{len(self.commits)}{sorted(files)}"
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = dict(files)
        self.refs["main"] = sha
        return sha

    def resolve(self, revision):
        """The commit that a revision stands for, or None."""
        return revision if revision in self.commits else self.refs.get(revision)

    def files(self, revision="main"):
        """The files of a revision."""
        return self.commits[self.resolve(revision)]


class FakeHub(Loopback):
    """The server; use it as a context.

    Attributes:
        repositories: by owner/name.
        requests: "METHOD /path" of every request, in the order in which they came.
        strange: requests that the fake does not know.
    """

    def __init__(self):
        self.repositories = {}
        self.requests = []
        self.strange = []
        self.stored = {}
        super().__init__(_Handler)

    def publish(self, name, files, *, private=None):
        """Make a commit of a data set or model; return its hash."""
        repository = self.repositories.setdefault(name, Repository())
        if private is not None:
            repository.private = private
        return repository.commit(files)

    def run(self, home, program, *arguments, token=None):
        """Run a program, or with "-c" some code, that talks to this Hub and to nothing else."""
        command = [program] if program == "-c" else [str(ROOT / program)]
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith("HF_")
        }
        environment = {
            **variables,
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
        return subprocess.run(
            [sys.executable, *command, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=ROOT,
            check=False,
            env=environment,
        )


class _Handler(Handler):
    def _answer(self):
        hub = self.server.fake
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        match parts[1:] if parts[0] == "datasets" else parts:
            case ["api", "validate-yaml"]:
                self._send_json({"errors": [], "warnings": []})
            case ["api", "repos", "create"]:
                self._create(json.loads(body))
            case ["api", "datasets" | "models", owner, name, *rest]:
                self._ask(f"{owner}/{name}", rest, body)
            case [_, _, "info", "lfs", "objects", "batch"]:
                self._offer_storage(json.loads(body))
            case ["storage", oid]:
                hub.stored[oid] = body
                self._send(b"", 200)
            case [owner, name, "resolve", revision, *rest]:
                self._serve_file(f"{owner}/{name}", revision, "/".join(rest))
            case _:
                self._give_up()

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def _signed_in(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _find(self, name):
        repository = self.server.fake.repositories.get(name)
        if repository is None or (repository.private and not self._signed_in()):
            # The real one does not say which.
            self._send_error(401 if not self._signed_in() else 404, "RepoNotFound")
            return None
        return repository

    # What is asked ---------------------------------------------------------------------------

    def _ask(self, name, rest, body):
        repository = self._find(name)
        if repository is None:
            return
        match rest or ["revision", "main"]:
            case ["preupload" | "commit", *_] if not self._signed_in():
                self._send_error(401, "")
            case ["preupload", _]:
                self._choose_modes(json.loads(body))
            case ["commit", revision]:
                self._commit(name, repository, revision, body)
            case ["revision" | "tree" | "paths-info" as kind, revision, *inner]:
                if (sha := repository.resolve(revision)) is None:
                    self._send_error(404, "RevisionNotFound")
                elif kind == "revision":
                    files = [{"rfilename": path} for path in repository.commits[sha]]
                    about = {"_id": "1", "id": name, "sha": sha, "private": repository.private}
                    self._send_json({**about, "tags": [], "downloads": 0, "siblings": files})
                else:
                    files = repository.commits[sha]
                    asked = parse_qs(body.decode()).get("paths", [])
                    result = asked if kind == "paths-info" else _below(files, "/".join(inner))
                    entries = [_entry(files, path) for path in result]
                    self._send_json([entry for entry in entries if entry is not None])
            case _:
                self._give_up()

    def _serve_file(self, name, revision, path):
        repository = self._find(name)
        if repository is None:
            return
        sha = repository.resolve(revision)
        if sha is None:
            self._send_error(404, "RevisionNotFound")
            return
        headers = {"X-Repo-Commit": sha}
        content = repository.commits[sha].get(path)
        if content is None:
            self._send_error(404, "EntryNotFound", headers)
            return
        headers |= {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"}
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
        hub = self.server.fake
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        url = {"url": f"{hub.url}/{'datasets/' if asked.get('type') == 'dataset' else ''}{name}"}
        if name in hub.repositories:
            self._send_json({**url, "error": "You already created this dataset repo"}, 409)
            return
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        hub.publish(name, {".gitattributes": b"*.parquet lfs\n"}, private=private)
        self._send_json(url)

    def _choose_modes(self, asked):
        paths = [file["path"] for file in asked["files"]]
        modes = {path: "lfs" if path.endswith(_LARGE) else "regular" for path in paths}
        files = [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]
        self._send_json({"files": files})

    def _offer_storage(self, asked):
        upload = {
            thing["oid"]: {"href": f"{self.server.fake.url}/storage/{thing['oid']}"}
            for thing in asked["objects"]
        }
        objects = [
            {**entry, "actions": {"upload": upload[entry["oid"]]}} for entry in asked["objects"]
        ]
        self._send_json({"transfer": "basic", "objects": objects})

    def _commit(self, name, repository, revision, body):
        files = dict(repository.files(revision))
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            match item["key"]:
                case "header":
                    assert value["parentCommit"] == repository.resolve(revision)
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.fake.stored[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        sha = repository.commit(files)
        path = f"{self.server.fake.url}/datasets/{name}/commit/{sha}"
        self._send_json({"success": True, "commitOid": sha, "commitUrl": path})

    # How it is answered ----------------------------------------------------------------------

    def _give_up(self):
        self.server.fake.strange.append(f"{self.command} {self.path}")
        self._send_error(404, "EntryNotFound")

    def _send_json(self, content, status=200):
        self._send(json.dumps(content).encode(), status, {"Content-Type": "application/json"})

    def _send_error(self, status, code, headers=None):
        code_header = {"X-Error-Code": code} if code else {}
        self._send(b"{}", status, {**(headers or {}), "X-Error-Message": code, **code_header})

    def _send(self, body, status, headers=None):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _below(files, folder):
    """The files and folders at any depth below a folder, "" for the root."""
    paths = [PurePosixPath(path) for path in files]
    names = {str(item) for path in paths for item in (path, *path.parents)} - {"."}
    return sorted(name for name in names if not folder or name.startswith(f"{folder}/"))


def _entry(files, path):
    if path in files:
        content = files[path]
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        entry = {"type": "file", "path": path, "size": len(content), "oid": oid}
        if path.endswith(_LARGE):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
        return entry
    if _below(files, path):
        return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}
    return None
