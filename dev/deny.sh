# `cargo deny`: licences, sources and duplicate dependencies from deny.toml, advisories where their database can be
# reached. The tool is taken from PATH, else built once from crates.io into the cache (unoptimised: it is built far
# more slowly than it ever runs). Sourced by dev/check.
DENY_VERSION=0.20.2

deny_tool() {
    command -v cargo-deny && return
    local root=${CELLAR_CACHE:-$HOME/.cache/cellar}/tools
    if [ ! -x "$root/bin/cargo-deny" ]; then
        echo "building cargo-deny $DENY_VERSION once, into $root" >&2
        # A folder of its own for what is built, so that the project's target directory stays the project's. Run
        # from there too, or this repository's pinned toolchain and profiles would apply.
        (cd / && CARGO_TARGET_DIR="$root/build" timeout "${CELLAR_DENY_SECONDS:-1200}" \
            cargo install "cargo-deny@$DENY_VERSION" --locked --debug --quiet --root "$root") >&2 || return 1
        rm -rf "$root/build"
    fi
    echo "$root/bin/cargo-deny"
}

deny() {
    local tool log
    tool=$(deny_tool) || {
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
