# One word a task. `make run` and `make test` are all that a newcomer needs; both say what is missing.

# Cargo lives in ~/.cargo/bin after a rustup installation, which a fresh shell may not have in its PATH yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

DIR  ?= ./cell-data
CRATE ?=
ARGS ?=

.PHONY: help run build deb static test check unit test-stock-clients test-openafs-client test-kernel-client \
        test-all-clients test-client test-kerberos test-mixed-cell test-objects test-hsm test-serve test-console \
        test-etcd test-docs docs test-packages bench bench-volumes bench-objects bench-client bench-hsm bench-db clean-interop

help:
	@echo 'make run                   a cell in $(DIR), in the foreground; Ctrl-C stops it'
	@echo 'make test                  checks, all Rust tests, the stock user-space clients'
	@echo 'make check                 formatting, lints, documentation, dependencies'
	@echo 'make unit                  the Rust tests alone: no root, no network, no packages; CRATE=rx: of that crate'
	@echo 'make test-stock-clients    the interoperability tests that need no kernel guest'
	@echo 'make test-openafs-client   those that use afsd.fuse'
	@echo 'make test-kernel-client    those that use the client inside the Linux kernel'
	@echo 'make test-client           our own: the cache manager, and cellar mount'
	@echo 'make test-kerberos         tickets, tokens, who may do what: attack list, real KDC, kernel guest'
	@echo 'make test-objects          object storage: its crates, stock clients over devices that are killed (15 minutes)'
	@echo 'make test-hsm              archives, jobs, wiped files in all clients; builds a server of S3 once (needs Go)'
	@echo 'make test-serve            daemons as a site runs them: three machines, restarts, drains, metrics, read by Prometheus'
	@echo 'make test-etcd              several database servers over etcd: cut connections, killed members, stock clients'
	@echo 'make test-packages         Debian packages on clean machines: first steps, an upgrade, a purge, a cell with Kerberos (15 minutes)'
	@echo 'make test-console           the web console: its crate, and each page in Chromium'
	@echo 'make test-mixed-cell       OpenAFS and Cellar file servers in one cell: moves, releases, dumps, stock vos'
	@echo 'make deb                   the Debian packages cellar-server, cellar-client and cellar-tools'
	@echo 'make static                one program without shared libraries, for other distributions and containers'
	@echo 'make docs                  the documents as a book, in target/book; builds mdBook once'
	@echo 'make test-docs             every command line of the documents for users and administrators, with its output'
	@echo 'make bench                 the table beside an OpenAFS file server (root, quiet machine)'
	@echo 'make bench-volumes         what releasing, moving, dumping, many volumes cost, beside OpenAFS (the same)'
	@echo 'make bench-objects         files in objects: striped, copied, coded, many clients, devices that die (the same)'
	@echo 'make bench-hsm             copies to an archive and recalls, beside the library of archives alone (the same); bench/census, bench/recalls'
	@echo 'make bench-client          cellar mount beside afsd.fuse, the servers of OpenAFS and a local directory (the same)'
	@echo 'make bench-db              location and protection servers with 1,000,000 volumes, one and three, beside OpenAFS (the same)'
	@echo 'make clean-interop         forget the built kernel and other cached test material'

run: build
	@exec "$$(dev/toolchain target-directory)/release/cellar" up --dir $(DIR) $(ARGS)

build:
	@dev/toolchain need
	@cargo build --release --locked -p cellar

deb:
	@dev/deb

static:
	@dev/static

test:
	@dev/test

check:
	@dev/check

unit:
	@dev/test unit $(CRATE)

test-stock-clients:
	@dev/test clients

test-openafs-client:
	@dev/test clients --needs fuse

test-kernel-client:
	@dev/test clients --needs kernel

test-all-clients:
	@dev/test clients --needs any

test-client:
	@dev/test client

test-kerberos:
	@dev/test kerberos

test-mixed-cell:
	@dev/test mixed-cell

test-objects:
	@dev/test objects

test-hsm:
	@dev/test hsm

test-serve:
	@dev/test serve

test-etcd:
	@dev/test etcd

test-packages:
	@dev/test packages

test-console:
	@dev/test console

docs:
	@dev/docs

test-docs:
	@dev/test docs

bench:
	@bench/side-by-side $(ARGS)

bench-volumes:
	@bench/volumes $(ARGS)

bench-objects:
	@bench/objects $(ARGS)

bench-client:
	@bench/client $(ARGS)

bench-hsm:
	@bench/hsm $(ARGS)

bench-db:
	@bench/databases $(ARGS)

clean-interop:
	rm -rf "$${CELLAR_CACHE:-$(HOME)/.cache/cellar}"
