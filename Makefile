# SPDX-License-Identifier: Apache-2.0
#
# make demo    build, bring labs of network namespaces up: load balancing, then meshed clusters; take them down
# make demo-helm
#              build, install two clusters with helm in a lab of containers, mesh them, change values during traffic, uninstall
# make test    every test (installs what is missing first)
# make check   formatting, lints, documentation, generated files, licences, dependencies between domains
# make affected [BASE=commit]
#              clippy, tests and doc tests of the crates that the changes since a commit affect
# make nightly what a landing does not wait for: each feature of each crate by itself, messages of the compiler, benches
# make bench [BENCH=prefix]
#              measurements, as tables and as JSON under target/bench; with a prefix those of such names
# make dist    programs to ship, in target/dist; `skep`, `skep-cni` and `skep-init` linked statically
# make images  OCI images of the programs, in target/images
# make kernel-test KERNEL=image [MODULES=folder] [TESTS="host bpf …"]
#              tests on another kernel, in a virtual machine; see tests/hack/kernel-tests.sh
# make deps    install missing system packages (Debian and Ubuntu)

CARGO ?= cargo

HOST_TARGET = $(shell rustc -vV | sed -n 's/^host: //p')
STEP = ./tests/hack/step.sh
# Benches are built by `make bench` and `make nightly`.
WORKSPACE = --workspace --exclude lb-benchmark
TARGETS = --lib --bins --tests --examples

.PHONY: all dist deps demo demo-helm test check affected nightly fmt fmt-check untested links clippy doc generated check-deploy deny crates images bench kernel-test

all: deps
	$(CARGO) build --workspace

deps:
	@./tests/hack/deps.sh

demo: deps
	@./tests/hack/demo.sh

demo-helm:
	@./tests/hack/deps.sh --tests
	@./tests/hack/demo-helm.sh

test:
	@$(STEP) deps ./tests/hack/deps.sh --tests
	@$(STEP) build $(CARGO) build $(WORKSPACE) $(TARGETS)
	@$(STEP) doctests $(CARGO) test $(WORKSPACE) --doc --quiet
	@$(STEP) tests ./tests/hack/nextest.sh $(WORKSPACE)
	@$(STEP) chart ./deploy/helm/test.sh --program=$${CARGO_TARGET_DIR:-target}/debug/skep-agent --program=$${CARGO_TARGET_DIR:-target}/debug/skep-operator

check:
	@$(STEP) deps ./tests/hack/deps.sh --checks
	@for target in fmt-check untested links deny crates clippy doc generated check-deploy; do \
		$(STEP) $$target $(MAKE) --no-print-directory $$target || exit 1; \
	done

# What the changes since BASE reach, by reverse dependencies.
affected:
	@./tests/hack/affected.sh $(BASE)

nightly:
	@$(STEP) deps ./tests/hack/deps.sh --nightly
	@$(STEP) features ./tests/hack/crates.sh --every-feature
	@$(STEP) messages $(CARGO) nextest run -p skep-hive --ignore-default-filter -E 'binary(ui)'
	@$(STEP) every-step env EVERY_STEP=1 $(CARGO) nextest run -p skep-datapath-loader -E 'test(/^interrupted::/)'
	@$(STEP) clippy $(CARGO) clippy --workspace --all-targets -- -D warnings
	@$(STEP) benches-build $(CARGO) build -p skep-agent -p skep-cni --bins
	@$(STEP) benches $(CARGO) nextest run -p lb-benchmark
	@$(STEP) benches-run $(CARGO) bench -p skep-statedb -p skep-loadbalancer-maglev -- --test

fmt:
	$(CARGO) fmt --all
	git ls-files 'bpf/*.c' 'bpf/*.h' | xargs -r ./tests/hack/clang-format.sh -i

fmt-check:
	$(CARGO) fmt --all --check
	git ls-files 'bpf/*.c' 'bpf/*.h' | xargs -r ./tests/hack/clang-format.sh --dry-run -Werror

# Tests that cargo does not run.
untested:
	./tests/hack/untested.sh

links:
	python3 tests/hack/links.py

clippy:
	$(CARGO) clippy $(WORKSPACE) $(TARGETS) -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# Reference pages are generated from the code; they must be up to date.
generated:
	./tests/hack/generate.sh --check

# The chart, and the manifest for those without Helm.
check-deploy:
	./deploy/helm/check.sh

# Licences, bans and sources of dependencies, of all platforms.
deny:
	$(CARGO) fetch --locked
	$(CARGO) deny --offline --log-level error check licenses bans sources

# The order of domains, what no crate may depend on, and the crates for embedders by themselves.
crates:
	./tests/hack/crates.sh

dist: deps
	# By package: features that only tests want, such as script suites, are not in what ships.
	$(CARGO) build --profile dist -p skep-agent -p skep-operator -p skep-clustermesh-apiserver -p skep-certgen -p skep-cluster -p skep-lab --bin skep-agent --bin skep-operator --bin skep-clustermesh-apiserver --bin skep-certgen --bin skep-cluster --bin skep-probe --bin skep-lab
	RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --profile dist --target $(HOST_TARGET) -p skep -p skep-cni -p skep-init --bin skep --bin skep-cni --bin skep-init
	cp $${CARGO_TARGET_DIR:-target}/$(HOST_TARGET)/dist/skep $${CARGO_TARGET_DIR:-target}/dist/skep
	cp $${CARGO_TARGET_DIR:-target}/$(HOST_TARGET)/dist/skep-cni $${CARGO_TARGET_DIR:-target}/dist/skep-cni
	cp $${CARGO_TARGET_DIR:-target}/$(HOST_TARGET)/dist/skep-init $${CARGO_TARGET_DIR:-target}/dist/skep-init

# OCI images of the programs in target/images; built twice for the digest test.
images: dist
	@./tests/hack/deps.sh --images
	./deploy/images/build.sh
	./deploy/images/test.sh

bench:
	@./tests/hack/deps.sh --bench
	@./tests/hack/bench.sh

kernel-test:
	@./tests/hack/kernel-tests.sh "$(KERNEL)" "$(MODULES)" $(TESTS)
