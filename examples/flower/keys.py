"""Keys of clients, and signed apps: SuperNodes with --trusted-entities run only apps that a trusted key has signed.

python keys.py new ec|ed25519 NAME       writes NAME.key and NAME.pub; ec for a client, ed25519 to sign with
python keys.py unlock KEY                prints a client's key decrypted, as flower-supernode needs it
python keys.py trust NAME.pub            prints the line for the file of --trusted-entities
python keys.py sign KEY APP FOLDER       builds the app in the folder APP, and writes it and its signature to FOLDER
python keys.py serve FOLDER ADDRESS      serves them to a SuperLink that has FLWR_SUPERGRID_API_URL=http://ADDRESS

A passphrase is read from KEY_PASSPHRASE, or asked for at a terminal. With an empty one, a new key is not encrypted.
Flower 1.41 accepts signatures from its hub only, so `serve` answers a SuperLink as the hub does.
"""

import base64
import getpass
import hashlib
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

PLAIN = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def new(kind: str, name: str) -> None:
    key = generate_private_key(SECP384R1()) if kind == "ec" else Ed25519PrivateKey.generate()
    words = _passphrase(f"passphrase for {name}.key, empty for none: ")
    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(words)) if words else PLAIN
    with os.fdopen(os.open(f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(*form))
    Path(f"{name}.pub").write_bytes(_public(key) + b"\n")


def unlock(path: str) -> None:
    sys.stdout.buffer.write(_private(path).private_bytes(*PLAIN))


def trust(path: str) -> None:
    public = Path(path).read_text().strip()
    print(f"{json.dumps(_fingerprint(public.encode()))}: {json.dumps(public)}")


def sign(path: str, app: str, folder: str) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

    fab, key, now = build_fab_from_disk(Path(app)), _private(path), int(time.time())
    signature = key.sign(create_message_to_sign(hashlib.sha256(fab).digest(), now))
    verification = {
        "public_key_id": _fingerprint(_public(key)),
        "signature": base64.urlsafe_b64encode(signature).decode().rstrip("="),
        "signed_at": now,
    }
    name, version = get_fab_metadata(fab)
    place = Path(folder) / f"{name.replace('/', '.')}.{version}.fab"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(fab)
    place.with_suffix(".json").write_text(json.dumps(verification))
    print(f"@{name}=={version}")  # the name of the app for flwr run


def serve(folder: str, address: str) -> None:
    def found(name: str) -> Path | None:  # a name cannot lead out of the folder
        return next((path for path in Path(folder).glob("*.fab") if path.name == name), None)

    class Hub(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = found(f"{request['app_id'].removeprefix('@').replace('/', '.')}.{request['app_version']}.fab")
            if path is None:
                return self.send_error(404)
            verification = json.loads(path.with_suffix(".json").read_text())
            answer = {"fab_url": f"http://{address}/{path.name}", "verifications": [verification]}
            return self._answer(json.dumps(answer).encode())

        def do_GET(self) -> None:
            path = found(self.path.removeprefix("/"))
            return self.send_error(404) if path is None else self._answer(path.read_bytes())

        def _answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    host, port = address.rsplit(":", 1)
    ThreadingHTTPServer((host, int(port)), Hub).serve_forever()


def _passphrase(prompt: str) -> bytes:
    given = os.environ.get("KEY_PASSPHRASE")
    if given is None:
        given = getpass.getpass(prompt) if sys.stdin.isatty() else ""
    return given.encode()


def _private(path: str):
    content = Path(path).read_bytes()
    if b"OPENSSH" in content:
        return load_ssh_private_key(content, None)
    try:
        return load_pem_private_key(content, _passphrase(f"passphrase of {path}: "))
    except (TypeError, ValueError):
        sys.exit(f"{path}: this is not its passphrase.")


def _public(key) -> bytes:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def _fingerprint(public: bytes) -> str:
    """The fingerprint that ssh-keygen -l prints."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


if __name__ == "__main__":
    words = {"new": new, "unlock": unlock, "trust": trust, "sign": sign, "serve": serve}
    words[sys.argv[1]](*sys.argv[2:])
