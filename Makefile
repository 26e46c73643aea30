# Everything that CI does is a target here; `make` lists them.

# Where Rust's usual installer puts it, for shells whose PATH lacks it.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# rust-toolchain.toml pins a version. Where rustup has it under another name only, such as `stable`, use that name:
# rustup would download it again, or fail without a network.
ifeq ($(origin RUSTUP_TOOLCHAIN),undefined)
INSTALLED := $(shell scripts/toolchain)
ifneq ($(INSTALLED),)
export RUSTUP_TOOLCHAIN := $(INSTALLED)
endif
endif

CARGO ?= cargo
BUILT := $(or $(CARGO_TARGET_DIR),target)
XTASK := $(CARGO) run -q -p xtask --
PVNET := target/release/pvnet
PVNET_LAB := target/release/pvnet-lab
# Namespaces and taps need root; building never does.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
# A user without sudo has root's rights in a user namespace.
ROOTLESS := $(if $(SUDO),$(if $(shell command -v sudo),,$(PVNET) rootless))

.DEFAULT_GOAL := help
.PHONY: help deps build demo check test fmt fmt-check lint loom unit unit-build lab-dpdk lab-xen lab-xen-queues lab-xen-platform lab-xen-domains lab-xen-guest-copy lab-xen-hostile lab-xen-device lab-xen-clients lab-qemu lab-zero-copy lab-ovn scope scope-cross-check gate gate-update profile profiled gate-xen gate-xen-update bench-instructions bench deny docs test-documents doc deb deb-older deb-test deb-test-systemd container-image static sbom clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Install all missing Debian packages, and Rust where Debian has rustup
	scripts/deps

# Those of a group alone, which scripts/deps lists.
deps-%:
	scripts/deps $*

build: deps-build ## Build everything, optimised
	$(CARGO) build --workspace --release

# The demo's programs have a folder and a profile of their own: they are compiled without LTO.
DEMO := $(BUILT)/demo
demo: PVNET := $(DEMO)/pvnet
demo: deps-demo ## Show in a minute what pvnet does (QUICK=1: in half of it; RIVALS=1: beside passt, VDE and QEMU)
	$(CARGO) build --profile demo --locked -p pvnet -p pvnet-lab --no-default-features
	@mkdir -p out # made by the user, so that it stays theirs when sudo writes into it
	$(or $(ROOTLESS),$(SUDO)) $(DEMO)/pvnet-lab demo $(if $(QUICK),--quick) $(if $(RIVALS),--rivals)

check: ## Check what changed since main: format, lints, unit tests (no installs)
	scripts/check

# As root, as in CI, no test may be skipped for want of a program that scripts/deps installs.
test: export PVNET_TESTS ?= $(if $(filter 0,$(shell id -u)),all)
# A short fuzz round.
test: export PVNET_FUZZ_SECONDS ?= 4
test: ## Run everything that CI runs
	$(MAKE) deps
	$(MAKE) fmt-check
	scripts/tests
	$(MAKE) deny docs XTASK=$(BUILT)/debug/xtask # alone, it would be built again: its dependencies have fewer features then

fmt: ## Format the code
	$(CARGO) fmt --all

fmt-check: ## Check the formatting
	$(CARGO) fmt --all --check

lint: ## Run clippy, of the fuzz targets too, warnings are errors
	$(CARGO) clippy --workspace --all-targets --features fuzz/check -- -D warnings

loom: ## Model-check notifications (rings, card, watchdog), sleeping workers, the IOMMU's invalidations, guarded memory (also in `test`)
	$(CARGO) test --workspace --test loom

unit-build: ## Compile all tests, and the plugin that some of them have QEMU load
	$(CARGO) build --workspace --all-targets

# Most of them wait, so several run on each processor.
unit test: export RUST_TEST_THREADS ?= $(shell expr 3 \* $$(nproc))
unit: unit-build ## Run all tests (without root, those with namespaces are skipped unless PVNET_TESTS=all)
	$(CARGO) test --workspace --all-targets

lab-dpdk: deps-dpdk ## Drive virtual machines' ports by every layout of DPDK's testpmd, and kill both sides again and again
	$(CARGO) build -q -p pvnet-lab
	$(CARGO) test -q -p pvnet --test vhost_user -- --ignored

lab-xen: deps-xen build ## Boot Xen in QEMU and connect every frontend with every backend
	$(PVNET_LAB) xen matrix

lab-xen-queues: deps-xen build ## Boot Xen in QEMU and show how many queues guests get
	$(PVNET_LAB) xen queues

lab-xen-platform: deps-xen build ## Boot Xen in QEMU and test each Xen service that pvnet uses
	$(CARGO) build --release -p xen --example loopback
	$(PVNET_LAB) xen platform

lab-xen-domains: deps-xen build ## Boot Xen in QEMU and run two guests through an operator's day
	$(PVNET_LAB) xen domains

lab-xen-guest-copy: deps-xen build ## Boot Xen in QEMU and let guests copy frames out of pvnet's pages
	$(PVNET_LAB) xen guest-copy

lab-xen-hostile: deps-xen build ## Boot Xen in QEMU and let one guest attack pvnet beside another
	$(PVNET_LAB) xen hostile

lab-xen-device: deps-xen build ## Boot Xen in QEMU and let its own scripts put guests' devices into a bridge and Open vSwitch
	@mkdir -p out
	$(PVNET_LAB) xen device --json out/lab-xen-device.json

lab-xen-clients: deps-xen build ## Boot Xen in QEMU and serve frontends with the habits of real ones, beside netback
	@mkdir -p out
	$(PVNET_LAB) xen clients --json out/lab-xen-clients.json

lab-qemu: deps-qemu build ## Boot virtual machines in QEMU as pvnet's guests, and restart both sides under traffic
	@mkdir -p out
	$(SUDO) $(PVNET_LAB) qemu --json out/lab-qemu.json

lab-zero-copy: deps-qemu build ## Boot a machine whose network card and pvnet, inside it, share memory (AF_XDP, zero copy)
	@mkdir -p out
	$(SUDO) $(PVNET_LAB) qemu --zero-copy --json out/lab-zero-copy.json

lab-ovn: deps-ovn build ## Put guests of two hosts' pvnet on OVN's logical switches, move one, and kill a pvnet
	@mkdir -p out
	$(SUDO) $(PVNET_LAB) ovn --json out/lab-ovn.json

# The workloads that the papers' claims are judged by; the others are shown beside them.
SCOPE_WORKLOADS := tx-udp tx-stock-basic rx-stock-basic tx-stock tx-sendfile-basic tx-sendfile tx-frontend-remap \
	tx-frontend-header tx-frontend virtio-dom0 virtio

scope: deps-xen build ## Profile Xen hosts in QEMU beside two papers' figures, results in out/
	@mkdir -p out/scope
	set -e; for workload in $(SCOPE_WORKLOADS); do \
		target/release/pvscope run $$workload --preset 2007 --flow 4000000 --out out/scope/$$workload.pvs; \
	done
	target/release/pvscope repro chadha07 --from out/scope --html out/chadha07.html --json out/chadha07.json
	target/release/pvscope repro menon06 --from out/scope --html out/menon06-tlb.html --json out/menon06-tlb.json
	target/release/pvscope packet out/scope/tx-stock.pvs --html out/packet.html >out/packet.txt
	target/release/pvscope bench

scope-cross-check: build ## Compare pvscope's caches with those of QEMU's own plugin, which is fetched and compiled
	scripts/scope-cross-check

# Like all that runs target/release, gates count what `build` makes: a build of some packages has other features, and compiles nearly all anew.
GATE := target/release/pvscope check docs/baseline.txt

gate: build ## Compare pvnet's instructions, misses and hypercalls per frame with docs/baseline.txt, in QEMU
	$(GATE)

gate-update: build ## Write docs/baseline.txt and the tables of docs/performance.md anew: commit them with the reason
	$(GATE) --update --page docs/performance.md

# Where they are, packages have the programs that are compiled by them.
COUNTS := target/counts/pvnet.profdata
$(COUNTS):
	scripts/profile count

profile: ## Count the branches that pvnet takes under traffic, in QEMU, and compile it by them: target/profiled/pvnet (25 minutes)
	scripts/profile count
	scripts/profile build

profiled: $(COUNTS)
	scripts/profile build

GATE_XEN := target/profiled/pvscope repro netback --baseline docs/xen-baseline.txt --jobs $(shell nproc)

gate-xen: profiled ## Compare what a byte, a packet and a round cost with pvnet on a Xen host with docs/xen-baseline.txt, in QEMU (26 recordings, of one to two minutes each)
	$(GATE_XEN)

gate-xen-update: profiled ## Write docs/xen-baseline.txt and the tables of docs/xen-cost.md and docs/xen-cost-tables.md anew: commit them with the reason
	$(GATE_XEN) --update --page docs/xen-cost.md --tables docs/xen-cost-tables.md

bench-instructions: ## Count the instructions of rings, switch, offloads and copies, by valgrind (needs gungraun-runner)
	$(CARGO) bench --manifest-path bench/Cargo.toml --target-dir target/bench

bench: deps-demo build ## Run all benchmarks, results in out/
	scripts/bench

deny: ## Check licences, duplicates and sources of the dependencies
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny check bans licenses sources; \
	else \
		$(XTASK) deny; \
	fi

docs: ## Check the links between documents, the files that they name, the rows of SPECIFICATION.md, and that the product has no laboratory in it
	$(XTASK) docs

test-documents: deps build ## Paste the documents' blocks that take minutes, on a copy of this system that is thrown away (hours; DOCUMENT='docs/chadha07.md docs/menon06.md': theirs, of which the second needs what the first records)
	$(CARGO) build -q -p pvnet -p pvnet-lab
	$(CARGO) test -q -p pvnet --test documents -- --ignored --nocapture

doc: ## Build the API documentation, warnings are errors, and run its examples
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	$(CARGO) test --workspace --doc

PACKAGED := $(if $(wildcard $(COUNTS)),target/profiled/pvnet,$(PVNET))
deb: deps-build ## Build Debian packages in out/ (after `make profile`: of programs that are compiled by it)
	rm -f out/pvnet_*.deb out/pvnet-lab_*.deb out/pvscope_*.deb
ifneq ($(wildcard $(COUNTS)),)
	scripts/profile build
else
	$(CARGO) build --release --locked -p pvnet -p pvnet-lab -p xenlab -p pvscope -p scope-plugin
endif
	scripts/deb $(PACKAGED)

# What an upgrade begins with: the same programs under an earlier version.
OLDER := 0~older
deb-older: deb
	OUT=out/older scripts/deb $(PACKAGED) $(OLDER)

deb-test: deb-older ## Build the Debian packages, check them by lintian, install, upgrade under traffic, remove (a minute once built)
	scripts/deb-lint out/pvnet_*.deb out/pvnet-lab_*.deb out/pvscope_*.deb
	$(SUDO) scripts/deb-test out/older/pvnet_*.deb out/pvnet_*.deb

deb-test-systemd: deb-older ## The same with systemd as PID 1, in a container: units, watchdog, exposure (needs Debian's mirrors)
	$(SUDO) scripts/deb-test-systemd out/older/pvnet_*.deb out/pvnet_*.deb $(IMAGE)

container-image: deb ## Make a container image of the Debian package, without a registry (needs Debian's mirrors)
	$(SUDO) scripts/container-image out/pvnet_*.deb $(IMAGE)

static: ## Build pvnet without shared libraries, for musl
	scripts/static

sbom: ## Write the list of all crates in pvnet (CycloneDX) to out/
	@mkdir -p out
	$(XTASK) sbom pvnet "$$(rustc -vV | sed -n 's/^host: //p')" >out/sbom.cdx.json

clean: ## Remove everything that was built or measured
	$(CARGO) clean
	rm -rf out
