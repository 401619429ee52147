# pgsteer. Every target is thin; `make` lists them.

GO      ?= go
BIN     := bin/pgsteer
# make test TEST=pattern, make bench BENCH=pattern COUNT=6, make histories HISTORIES=100000
TEST    ?= .
BENCH   ?= .
COUNT   ?= 1
# What a benchmark of gaps needs for 30 switchovers and 10 crashes.
BENCHTIME ?= $(if $(findstring Gap,$(BENCH)),10x,1s)
HISTORIES ?= 10000
TIMEOUT ?= 40m
PKGS    ?= ./...

.DEFAULT_GOAL := help
.PHONY: help demo test histories bench lint build fmt golden

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Run the main job on real servers, in about a minute; installs what is missing (as root)
	@scripts/setup demo
	@$(MAKE) -s build
	@$(BIN) demo

test: ## Run every test, against real servers too; installs what is missing (as root)
	@scripts/setup test
	$(GO) vet $(PKGS)
	$(GO) test -race -shuffle=on -timeout $(TIMEOUT) -run '$(TEST)' $(PKGS)
	$(if $(filter .,$(TEST)),$(GO) test -timeout $(TIMEOUT) -run Fleet ./watchers/consul) # skipped with -race, see bubble there
	$(if $(filter .,$(TEST)),$(GO) test -timeout $(TIMEOUT) -run RequestsOfMany ./agent/mesh) # with -race no fleet of 10,000
	$(if $(filter ./...,$(PKGS)),cd xds/grpctest && $(GO) vet ./... && $(GO) test -race -timeout $(TIMEOUT) -run '$(TEST)' ./...) # a module of its own

histories: ## Play random histories against the rules, new ones each time: make histories HISTORIES=10000
	PGSTEER_HISTORIES=$(HISTORIES) $(GO) test -v -count=1 -timeout 12h -run 'Model|Invariant|Property|Trap|DecidesNothing|CountsOnce' ./agent/engine

bench: ## Run the benchmarks in Go's format: make bench BENCH=pattern COUNT=6
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -p 1 -benchtime $(BENCHTIME) -count $(COUNT) -timeout 120m $(PKGS)

lint: ## Check formatting and style
	$(GO) tool -modfile=tools/go.mod golangci-lint run
	cd xds/grpctest && $(GO) tool -modfile=../../tools/go.mod golangci-lint run

fmt: ## Format the code
	$(GO) tool -modfile=tools/go.mod gofumpt -w agent cmd internal templates watchers xds

golden: ## Write golden files anew
	$(GO) test ./templates/builtin ./xds/resources ./agent/config ./agent/status ./agent/simulate ./cmd/pgsteer -update

build: ## Build bin/pgsteer
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/pgsteer
