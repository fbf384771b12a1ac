"""A Hub on loopback: a real HTTP server that speaks the part of the Hub's API that pushing and loading a model need.
Data sets and Spaces can be pushed too; `repos` has them as "datasets/me/x" and "spaces/me/x".

    with HubServer() as hub:
        push(folder, Repository("me/x", token=hub.token, endpoint=hub.url))
        hub.repos["me/x"].branches["main"]["README.md"]

Files of a repository change in its commit call alone, all at once, as they do on the Hub. `hub.break_at(3, 503)` makes
the fourth request from now on fail. Nothing here is checked that the client does not need, except uploads: their hash
must be that of the bytes.
"""

import base64
import hashlib
import json
import math
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


KINDS = {"models": "", "datasets": "datasets/", "spaces": "spaces/"}  # in the API → before the id in addresses
LARGE_FILES = (".safetensors", ".bin", ".png", ".parquet")


@dataclass
class Repo:
    """Visibility and, by branch, the bytes of every file. `sdk` of a Space."""

    private: bool
    sdk: str | None = None
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[str] = field(default_factory=list)

    def sha(self, branch: str) -> str:
        files = sorted((path, hashlib.sha1(content).hexdigest()) for path, content in self.branches[branch].items())
        return hashlib.sha1(json.dumps(files).encode()).hexdigest()


class ApiError(Exception):
    """An answer other than 200, with the Hub's `X-Error-Code`."""

    def __init__(self, status: int, message: str, *, code: str = "", **body: str):
        self.status, self.body = status, {"error": message, **body}
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})


class HubServer:
    """Runs from `with` to its end. `requests` lists what came in ("POST /api/repos/create"), broken or not.

    Attributes: `url`, `token` (the one that may write), `user`, `repos` by id, `requests`.
    """

    def __init__(self, *, token: str = "hf_loopback0123456789abcdef", user: str = "me"):
        self.token, self.user = token, user
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self._broken: tuple[int, int | str] | None = None
        self._closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.hub = self
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    def break_at(self, index: int, failure: int | str) -> None:
        """Breaks all requests from the `index`-th from now on.

        `failure` is a status, "drop" (the connection closes while the body is read), "lost" (the request is carried
        out, its answer is not sent) or "hang" (no answer until the client gives up).
        """
        self.requests.clear()
        self._broken = (index, failure)

    def mend(self) -> None:
        """From now on every request works."""
        self.requests.clear()
        self._broken = None

    def count(self, request: str) -> int | str | None:
        """Takes note of a request. Returns the failure that it is to have."""
        with self.lock:
            self.requests.append(request)
            first, failure = self._broken or (math.inf, None)
            return failure if len(self.requests) > first else None

    def wait_for_end(self) -> None:
        self._closing.wait()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # which would hold back every answer for 40 ms

    def log_message(self, *args: object) -> None:
        """Nothing: the tests read what the client prints."""

    def handle_request(self) -> None:
        self.hub: HubServer = self.server.hub
        url = urlsplit(self.path)
        self.parts, self.query = [unquote(p) for p in url.path.strip("/").split("/")], parse_qs(url.query)
        failure = self.hub.count(f"{self.command} {url.path}")
        self.close_connection = failure in ("drop", "hang", "lost")
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length // 2 if failure == "drop" else length)
        if failure == "hang":
            self.hub.wait_for_end()
        if failure in ("drop", "hang"):
            return
        try:
            if isinstance(failure, int):
                raise ApiError(failure, f"told to answer {failure}")
            with self.hub.lock:
                status, content, headers = self.answer()
        except ApiError as error:
            status, content, headers = error.status, json.dumps(error.body).encode(), error.headers
        if failure == "lost":
            return
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET = do_POST = do_PUT = handle_request

    def answer(self) -> tuple[int, bytes, dict[str, str]]:
        """Status, content and headers."""
        match self.command, self.parts:
            case "POST", ["api", "repos", "create"]:
                result = self.create()
            case "GET", ["api", "whoami-v2"]:
                self.need_token()
                result = {"type": "user", "name": self.hub.user, "orgs": []}
            case "POST", ["api", "validate-yaml"]:
                result = {"errors": [], "warnings": []}
            case "POST", ["api", kind, user, name, what, branch] if what in ("preupload", "commit", "branch"):
                self.need_token()
                result = getattr(self, what)(KINDS[kind] + f"{user}/{name}", branch)
            case "GET", ["api", kind, user, name, *revision] if kind in KINDS:
                result = self.info(KINDS[kind] + f"{user}/{name}", revision)
            case "POST", [*kind, user, name, "info", "lfs", "objects", "batch"]:
                self.need_token()
                self.repo("/".join([*kind, user, name.removesuffix(".git")]))
                result = {"transfer": "basic", "objects": [self.upload_of(o) for o in json.loads(self.body)["objects"]]}
            case "PUT", ["large", oid]:
                assert hashlib.sha256(self.body).hexdigest() == oid
                self.hub.large[oid], result = self.body, {}
            case "GET" | "HEAD", [user, name, "resolve", branch, *path]:
                return self.resolve(f"{user}/{name}", branch, "/".join(path))
            case _:
                raise ApiError(404, f"this Hub has no {self.command} {self.path}", code="EntryNotFound")
        return 200, json.dumps(result).encode(), {"Content-Type": "application/json"}

    def need_token(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            raise ApiError(401, "Invalid credentials in Authorization header")

    def repo(self, name: str) -> Repo:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.headers.get("Authorization") != f"Bearer {self.hub.token}"):
            raise ApiError(401 if repo else 404, "Repository not found", code="RepoNotFound")
        return repo

    def files(self, name: str, branch: str) -> dict[str, bytes]:
        branches = self.repo(name).branches
        for known, files in branches.items():
            if branch in (known, self.repo(name).sha(known)):
                return files
        raise ApiError(404, f"no revision {branch}", code="RevisionNotFound")

    def create(self) -> dict:
        self.need_token()
        wanted = json.loads(self.body)
        name = f"{wanted.get('organization') or self.hub.user}/{wanted['name']}"
        if not name.startswith(f"{self.hub.user}/"):
            raise ApiError(403, f"You have no rights under {name.split('/')[0]}")
        kind = wanted.get("type", "model")
        name = KINDS[f"{kind}s"] + name
        url = f"{self.hub.url}/{name}"
        if name in self.hub.repos:
            raise ApiError(409, f"You already created this {kind} repo", url=url)
        private = wanted.get("visibility") == "private" or wanted.get("private") is True
        self.hub.repos[name] = Repo(private=private, sdk=wanted.get("sdk"))
        return {"url": url, "name": name.removeprefix(KINDS[f"{kind}s"])}

    def info(self, name: str, revision: list[str]) -> dict | list:
        repo = self.repo(name)
        branch = revision[1] if len(revision) > 1 else "main"
        files = self.files(name, branch)
        if revision[:1] == ["tree"]:
            return [{"type": "file", "path": p, "size": len(c), "oid": git_hash(c)} for p, c in files.items()]
        siblings = [{"rfilename": path} for path in files]
        sha = repo.sha(branch) if branch in repo.branches else branch
        short = "/".join(name.split("/")[-2:])
        return {"id": short, "private": repo.private, "sha": sha, "siblings": siblings, "tags": []}

    def preupload(self, name: str, branch: str) -> dict:
        there = self.files(name, branch)
        answers = []
        for file in json.loads(self.body)["files"]:
            path, known = file["path"], there.get(file["path"])
            large = path.endswith(LARGE_FILES)
            oid = None if known is None else hashlib.sha256(known).hexdigest() if large else git_hash(known)
            mode = "lfs" if large else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": answers}

    def upload_of(self, wanted: dict) -> dict:
        upload = {"href": f"{self.hub.url}/large/{wanted['oid']}"}
        return {"oid": wanted["oid"], "size": wanted["size"], "actions": {"upload": upload}}

    def commit(self, name: str, branch: str) -> dict:
        files = dict(self.files(name, branch))
        for line in map(json.loads, self.body.splitlines()):
            match line["key"], line["value"]:
                case "header", {"summary": summary}:
                    pass
                case "file", {"path": path, "content": content}:
                    files[path] = base64.b64decode(content)
                case "deletedFile", {"path": path}:
                    del files[path]
                case "lfsFile", {"path": path, "oid": oid}:
                    files[path] = self.hub.large[oid]
        repo = self.repo(name)
        repo.branches[branch] = files
        repo.commits.append(summary)
        return {"commitUrl": f"{self.hub.url}/{name}/commit/{repo.sha(branch)}", "commitOid": repo.sha(branch)}

    def branch(self, name: str, branch: str) -> dict:
        branches = self.repo(name).branches
        if branch in branches:
            raise ApiError(409, "Reference already exists")
        branches[branch] = dict(branches["main"])
        return {}

    def resolve(self, name: str, branch: str, path: str) -> tuple[int, bytes, dict[str, str]]:
        content = self.files(name, branch).get(path)
        if content is None:
            raise ApiError(404, "Entry not found", code="EntryNotFound")
        repo = self.repo(name)
        commit = repo.sha(branch) if branch in repo.branches else branch
        return 200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
