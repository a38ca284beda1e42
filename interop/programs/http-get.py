#!/usr/bin/env python3
"""http-get.py PLACE [FILE]: prints the reply to GET /metrics of an HTTP server on a Unix socket, or on a port
of this machine. With FILE, it first writes 5,000 bytes to that file and keeps it open."""
import os, socket, sys

if len(sys.argv) > 2:
    os.write(os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY, 0o644), bytes(5000))
place = sys.argv[1]
with socket.socket(socket.AF_INET if place.isdigit() else socket.AF_UNIX) as s:
    s.settimeout(30)
    s.connect(("127.0.0.1", int(place)) if place.isdigit() else place)
    s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while piece := s.recv(65536):
        answer += piece
head, _, body = answer.partition(b"\r\n\r\n")
if not head.startswith(b"HTTP/1.1 200 "):
    sys.exit(head.decode())
print(body.decode(), end="")
