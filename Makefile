# SPDX-License-Identifier: Apache-2.0
#
# make demo    build, bring labs of network namespaces up: load balancing, then meshed clusters; take them down
# make test    every test (installs what is missing first)
# make check   formatting, lints, documentation, generated files, licences, each crate by itself
# make bench   measurements, as tables and as JSON under target/bench
# make dist    programs to ship, in target/dist; `skep` linked statically
# make kernel-test KERNEL=image [MODULES=folder] [TESTS="host bpf …"]
#              tests on another kernel, in a virtual machine; see tests/hack/kernel-tests.sh
# make deps    install missing system packages (Debian and Ubuntu)

CARGO ?= cargo

HOST_TARGET = $(shell rustc -vV | sed -n 's/^host: //p')

.PHONY: all dist deps demo test check fmt fmt-check untested clippy doc generated deny crates bench kernel-test

all: deps
	$(CARGO) build --workspace

deps:
	@./tests/hack/deps.sh

demo: deps
	@./tests/hack/demo.sh

test:
	@./tests/hack/deps.sh --tests
	$(CARGO) build --workspace --all-targets
	$(CARGO) test --workspace --doc --quiet
	./tests/hack/nextest.sh --workspace

check:
	@./tests/hack/deps.sh --checks
	$(MAKE) fmt-check untested clippy doc generated deny crates

fmt:
	$(CARGO) fmt --all
	git ls-files 'bpf/*.c' 'bpf/*.h' | xargs -r ./tests/hack/clang-format.sh -i

fmt-check:
	$(CARGO) fmt --all --check
	git ls-files 'bpf/*.c' 'bpf/*.h' | xargs -r ./tests/hack/clang-format.sh --dry-run -Werror

# Tests that cargo does not run.
untested:
	./tests/hack/untested.sh

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# Reference pages are generated from the code; they must be up to date.
generated:
	./tests/hack/generate.sh --check

# Licences, bans and sources of dependencies, of all platforms.
deny:
	$(CARGO) fetch --locked
	$(CARGO) deny --offline --log-level error check licenses bans sources

# Each crate by itself, with its own features; what no crate may depend on.
crates:
	./tests/hack/crates.sh

dist: deps
	# By package: features that only tests want, such as script suites, are not in what ships.
	$(CARGO) build --profile dist -p skep-agent -p skep-operator -p skep-clustermesh-apiserver -p skep-lab --bin skep-agent --bin skep-operator --bin skep-clustermesh-apiserver --bin skep-lab
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --profile dist --target $(HOST_TARGET) -p skep --bin skep
	cp $${CARGO_TARGET_DIR:-target}/$(HOST_TARGET)/dist/skep $${CARGO_TARGET_DIR:-target}/dist/skep

bench:
	@./tests/hack/deps.sh --bench
	@./tests/hack/bench.sh

kernel-test:
	@./tests/hack/kernel-tests.sh "$(KERNEL)" "$(MODULES)" $(TESTS)
