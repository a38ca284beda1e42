#!/usr/bin/env python3
"""http-get.py [--path PATH] [--token TOKEN] [--status] PLACE [FILE]: prints the reply to GET /metrics (or PATH) of
an HTTP server on a Unix socket, or on a port of this machine. --status prints the status first and accepts each.
With FILE, it first writes 5,000 bytes to that file and keeps it open."""
import argparse, os, socket, sys

parser = argparse.ArgumentParser()
parser.add_argument("--path", default="/metrics")
parser.add_argument("--token")
parser.add_argument("--status", action="store_true")
parser.add_argument("place")
parser.add_argument("file", nargs="?")
args = parser.parse_args()
if args.file:
    os.write(os.open(args.file, os.O_CREAT | os.O_WRONLY, 0o644), bytes(5000))
token = f"Authorization: Bearer {args.token}\r\n" if args.token else ""
with socket.socket(socket.AF_INET if args.place.isdigit() else socket.AF_UNIX) as s:
    s.settimeout(30)
    s.connect(("127.0.0.1", int(args.place)) if args.place.isdigit() else args.place)
    s.sendall(f"GET {args.path} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n".encode())
    answer = b""
    while piece := s.recv(65536):
        answer += piece
head, _, body = answer.partition(b"\r\n\r\n")
if args.status:
    print(head.split()[1].decode())
elif not head.startswith(b"HTTP/1.1 200 "):
    sys.exit(head.decode())
print(body.decode(), end="")
