# Thin: the work is in scripts/, which CI and people call alike.
#
#   make demo       the daily reward paid once although a node freezes, and what happens without the fence
#   make test       everything that is tested; `scripts/test.sh STAGE` runs one part of it
#   make test-ha    crashes, fail-overs, restores, an upgrade to the next major version, Patroni: some minutes more
#   make test-clients  drivers, ORMs and PgBouncer, the recipes of docs/, and the queries and alerts; some minutes
#   make torture    many clients under faults, a checker of their history, and two controls that it has to find out; DURATION=5m
#   make fuzz       random values for all that takes one; FUZZ_SECONDS=60
#   make bench      speed figures
#   make test-packages  the Debian package in a clean Debian 12, and the upgrade from the version before; as root
#   make test-majors    the tests on PostgreSQL 16, 17 and 18
#   make install    build and install into the server of PG_CONFIG (PostgreSQL 15 of Debian by default)
#   make package    target/packages/postgresql-15-lock-ext_..._amd64.deb and the release's archives; PG_CONFIG for another major
#
# All of these install what they need first, see scripts/needs.sh.

SHELL := /bin/bash
.SHELLFLAGS := -eu -c
export PG_CONFIG

# What can be installed, as a file tree in target/packages/stage.
all: needs
	scripts/package.sh stage

demo: install
	scripts/with-cluster.sh cargo run --quiet --release --package lock_ext_demo -- --svg target/demo.svg

# Refreshes the picture in the README.
demo-svg: demo
	mkdir -p docs
	cp target/demo.svg docs/demo.svg

test: needs-test
	scripts/test.sh

test-ha: needs-ha
	scripts/test.sh install ha

test-clients: needs-clients install
	scripts/clients.sh

DURATION ?= 5m
torture: needs-test install
	cargo run --release --package lock_ext_torture -- --duration $(DURATION)

FUZZ_SECONDS ?= 60
export FUZZ_SECONDS
fuzz: needs-test install
	scripts/with-cluster.sh cargo test --package lock_ext_sessions --release -- --ignored --nocapture fuzz

bench: needs-bench install
	scripts/bench.sh

# Refreshes the picture in the README.
bench-svg: bench
	mkdir -p docs
	cp target/bench.csv target/bench.svg docs/

install: needs
	scripts/install.sh

package: needs
	scripts/package.sh

test-packages: needs-packages
	tests/packages/run

test-majors: needs-majors
	scripts/majors.sh

needs:
	scripts/needs.sh

needs-test:
	scripts/needs.sh --test

needs-ha:
	scripts/needs.sh --ha

needs-clients:
	scripts/needs.sh --clients

needs-packages:
	scripts/needs.sh --packages

needs-majors:
	scripts/needs.sh --majors

needs-bench:
	scripts/needs.sh --bench

clean:
	cargo clean

.PHONY: all demo demo-svg test test-ha test-clients test-packages test-majors torture fuzz bench bench-svg install package needs needs-test needs-ha needs-clients needs-packages needs-majors needs-bench clean
.NOTPARALLEL:
