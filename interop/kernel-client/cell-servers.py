#!/usr/bin/python3
"""cell-servers.py IP[+PORT]...   a cell's database servers as the kernel's resolver key wants them, on standard output.

Layout: struct dns_server_list_v1_header and the structures after it in Linux's <linux/dns_resolver.h>. Numbers are
little-endian, addresses as they stand on the wire.
"""
import ipaddress
import struct
import sys

VL_PORT = 7003
SERVER_LIST, VERSION_1, FROM_CONFIGURATION, GOOD = 0, 1, 1, 1
UDP, IPV4, IPV6 = 1, 0, 1


def server(text):
    host, _, port = text.partition("+")
    address = ipaddress.ip_address(host)
    name = host.encode()
    head = struct.pack("<4H4B", len(name), 10, 10, int(port or VL_PORT), FROM_CONFIGURATION, GOOD, UDP, 1)
    return head + name + bytes([IPV4 if address.version == 4 else IPV6]) + address.packed


def main():
    servers = sys.argv[1:]
    head = struct.pack("6B", 0, SERVER_LIST, VERSION_1, FROM_CONFIGURATION, GOOD, len(servers))
    sys.stdout.buffer.write(head + b"".join(map(server, servers)))


main()
