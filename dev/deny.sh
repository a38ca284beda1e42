# `cargo deny`: licences, sources and duplicate dependencies by deny.toml; advisories, if their
# database can be reached. Sourced by dev/check.
. dev/tool.sh
DENY_VERSION=0.20.2

deny() {
    local tool log
    tool=$(command -v cargo-deny || crate_tool cargo-deny $DENY_VERSION "${CELLAR_DENY_SECONDS:-1200}") || {
        skipped "dependencies" "cargo-deny is not installed and could not be built from crates.io"
        skipped "advisories" "no cargo-deny"
        return 0
    }
    step "dependencies: licences, bans, sources" "$tool" --locked check licenses bans sources
    log=$(mktemp "${TMPDIR:-/tmp}/cellar-deny.XXXXXX")
    if timeout 120 "$tool" fetch db >"$log" 2>&1; then
        step "advisories" "$tool" --locked check advisories
    else
        skipped "advisories" "the RustSec database cannot be fetched: $(grep -m1 -i error "$log" | cut -c1-120)"
    fi
    rm -f "$log"
}
