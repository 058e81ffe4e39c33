"""A hub of one's own on 127.0.0.1: the few routes that huggingface_hub asks, and the troubles that a real one has."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories in memory (`owner/name` -> file name -> content), what was asked of them, and who is refused."""

    def __init__(self):
        self.files, self.asked, self.tokens, self.private = {}, [], set(), set()

    def sent(self):
        """Give the names of all files that were sent."""
        return [path.rpartition("/")[2] for method, path in self.asked if method == "GET" and "/resolve/" in path]


@contextmanager
def serving(hub):
    """Serve a hub; give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers like the hub."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        self.hub.tokens.add(self.headers.get("Authorization"))
        parts = path.strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo in self.hub.private:
            return self.refuse(401, "GatedRepo")
        if repo not in self.hub.files:
            return self.refuse(404, "RepoNotFound")
        files = self.hub.files[repo]
        if parts[0] == "api":
            tree = len(parts) > 4 and parts[4] == "tree"
            listed = [self.described(name, content, tree) for name, content in files.items()]
            whole = {"id": repo, "sha": COMMIT, "siblings": listed, "private": False, "tags": [], "downloads": 0}
            return self.send(200, json.dumps(listed if tree else whole).encode(), {"Content-Type": "application/json"})
        name = "/".join(parts[4:])
        if name not in files:
            return self.refuse(404, "EntryNotFound")
        head = {"ETag": f'"{hashlib.sha1(files[name]).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return self.send(200, files[name], head)

    @staticmethod
    def described(name, content, tree):
        blob = hashlib.sha1(content).hexdigest()
        if tree:
            return {"type": "file", "path": name, "size": len(content), "oid": blob}
        return {"rfilename": name, "size": len(content), "blobId": blob}

    def send(self, code, body, head):
        self.send_response(code)
        for key, value in {**head, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.wfile.flush()

    def refuse(self, code, name):
        self.send(code, b"{}", {"X-Error-Code": name, "X-Error-Message": name})
