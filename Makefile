# Everything needed beyond Go, git and make is set up by the targets themselves.

GO     ?= go
PREFIX ?= /usr/local

BINARIES := cove cove-guest cove-loop cove-runsc
# Programs that sprites at a backend are brought, for the architecture that this machine has not.
# The agent cove there needs cove-loop as well.
FOREIGN  ?= cove-guest
OTHER    := $(if $(filter arm64,$(shell $(GO) env GOARCH)),amd64,arm64)
LINTER   := .cache/golangci-lint
LEAKS    := .cache/leaks.json
SKIPPED  := .cache/skipped
TMP      := $(or $(TMPDIR),/tmp)

.PHONY: help build install demo test test-units test-e2e test-agents soak lint bench web-vendor screenshots clean

help:
	@echo 'make build                the four binaries, in bin/, and cove-guest for sprites of another architecture'
	@echo 'make install PREFIX=DIR   the same in DIR/bin (default: $(PREFIX)/bin)'
	@echo 'make demo                 push a plan into a sandbox and pull the commits, on a clone of this repository'
	@echo 'make test                 every test, and then a look for what they left behind'
	@echo 'make test-agents          the real agent CLIs, from npm, against a scripted model'
	@echo 'make soak                 load and kill -9, at length'
	@echo 'make lint                 golangci-lint'
	@echo 'make screenshots          pictures of the web page, for the documents'
	@echo 'make web-vendor           bring the scripts and styles of others that the web page has, by npm'
	@echo 'make bench                the benchmarks, each beside its floor'
	@echo 'make clean                remove what the other targets made'

# cove-guest runs where there is no libc to link against; the others follow suit.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/ $(BINARIES:%=./cmd/%)
	@for name in $(FOREIGN); do \
		CGO_ENABLED=0 GOOS=linux GOARCH=$(OTHER) $(GO) build -trimpath -ldflags '-s -w' -o "bin/$$name-$(OTHER)" "./cmd/$$name" || exit 1; \
	done

# A rename is atomic, and does not disturb a program that runs.
install: build
	mkdir -p '$(DESTDIR)$(PREFIX)/bin'
	@for name in $(BINARIES) $(FOREIGN:%=%-$(OTHER)); do \
		install -m 0755 "bin/$$name" '$(DESTDIR)$(PREFIX)/bin/.'"$$name.new" && \
		mv -f '$(DESTDIR)$(PREFIX)/bin/.'"$$name.new" '$(DESTDIR)$(PREFIX)/bin/'"$$name" || exit 1; \
		echo "installed $(DESTDIR)$(PREFIX)/bin/$$name"; \
	done

web-vendor:
	scripts/web-vendor.sh

demo: build
	scripts/demo.sh bin

# Tests are built as the binaries are, so that what was compiled once is not again,
# and make lint has what vet would say.
TESTBUILD := -trimpath -ldflags='-s -w' -vet=off

# COVE_REQUIRE_SANDBOX=1 makes a test fail that would be skipped for want of
# something on this machine. A result is never taken from the cache: what it
# depends on is the machine.
#
# The end-to-end tests run beside all others, and one package of them at a time: each runs
# four tests at once, and some tests look at the whole machine. Their packages take turns
# (internal/test/e2e); -p 2 builds one while another runs. Of the others, two run at once: most
# wait more than they compute, and some go on when the end-to-end tests have ended.
test: build
	@mkdir -p .cache
	CGO_ENABLED=0 $(GO) run -trimpath -ldflags='-s -w' ./internal/test/leakcheck/cmd/leakcheck before $(LEAKS) '$(TMP)/cove-*' '$(TMP)/Test*' '$(TMP)/go-test-script*'
	@: >$(SKIPPED)
	@$(MAKE) --no-print-directory -j2 test-units test-e2e
	CGO_ENABLED=0 $(GO) run -trimpath -ldflags='-s -w' ./internal/test/leakcheck/cmd/leakcheck after $(LEAKS)
	@sort $(SKIPPED) | uniq -c | while read -r n why; do echo "$$n skipped: $$why"; done

TESTRUN := CGO_ENABLED=0 COVE_BIN='$(CURDIR)/bin' COVE_SKIPPED='$(CURDIR)/$(SKIPPED)' $(GO) test $(TESTBUILD) -count=1 -parallel 4 -timeout 60m

test-units: build
	packages=$$($(GO) list ./...) && $(TESTRUN) -p 2 $(TESTFLAGS) $$(echo "$$packages" | grep -v '/internal/e2e/')

test-e2e: build
	$(TESTRUN) -p 2 $(TESTFLAGS) ./internal/e2e/...

test-agents: build
	COVE_BIN='$(CURDIR)/bin' COVE_REQUIRE_SANDBOX=1 COVE_TEST_AGENTS=1 $(GO) test -count=1 -timeout 2h -p 1 -v -run '^(TestClaude|TestAgent)' $(TESTFLAGS) ./internal/e2e/agents ./internal/e2e/jobs

# A sandbox has a descriptor for each of the folders that a test nests, 100,000 if there may be so many.
soak: build
	@mkdir -p .cache
	CGO_ENABLED=0 $(GO) run -trimpath -ldflags='-s -w' ./internal/test/leakcheck/cmd/leakcheck before $(LEAKS) '$(TMP)/cove-*' '$(TMP)/Test*' '$(TMP)/go-test-script*'
	ulimit -n "$$(cat /proc/sys/fs/nr_open)" 2>/dev/null; COVE_BIN='$(CURDIR)/bin' COVE_REQUIRE_SANDBOX=1 COVE_SOAK=1 $(GO) test -count=1 -timeout 4h -p 1 -v -run '^(TestSoak|TestHostileMachine|TestOrdinaryUser|TestDiskLimit$$|TestFullDiskStart)' $(TESTFLAGS) ./internal/e2e/...
	CGO_ENABLED=0 COVE_SOAK=1 $(GO) test -count=1 -timeout 1h -v -run '^TestSoak' $(TESTFLAGS) ./internal/server/job
	CGO_ENABLED=0 $(GO) run -trimpath -ldflags='-s -w' ./internal/test/leakcheck/cmd/leakcheck after $(LEAKS)

# The tests of the web page make a picture of each page. Those that the documents show are kept.
SHOTS := .cache/shots
screenshots:
	@rm -rf $(SHOTS) && mkdir -p $(SHOTS) docs/images
	CGO_ENABLED=0 COVE_SHOTS='$(CURDIR)/$(SHOTS)' $(GO) test -count=1 -run '^Test(Now|ListPages|JobPage|Sprite|Terminal|Files|First|New|Settings)' $(TESTFLAGS) ./internal/server/web ./internal/server/job
	for shot in $$(grep -oh 'images/[a-z-]*\.png' README.md docs/*.md | sort -u); do install -m 644 "$(SHOTS)/$${shot#images/}" docs/images/; done

lint: $(LINTER)
	$(LINTER) run

# In a module of its own, so that its dependencies are not cove's.
$(LINTER): tools/lint/go.mod tools/lint/go.sum
	$(GO) build -C tools/lint -o '$(CURDIR)/$(LINTER)' github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bench: build
	COVE_BIN='$(CURDIR)/bin' COVE_REQUIRE_SANDBOX=1 $(GO) test -run '^$$' -bench . -count=1 -timeout 60m $(BENCHFLAGS) \
		$$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -n1 dirname | sort -u)

clean:
	rm -rf bin .cache
