# Programs from crates.io that checks and tests use: built once into the cache, unoptimised, for
# they are built far more slowly than they ever run. Sourced.

# crate_tool CRATE VERSION SECONDS: prints where its program is, which has the crate's name.
crate_tool() {
    local crate=$1 version=$2 seconds=$3 root=${CELLAR_CACHE:-$HOME/.cache/cellar}/tools
    if [ "$(cat "$root/bin/$crate.version" 2>/dev/null)" != "$version" ] || [ ! -x "$root/bin/$crate" ]; then
        echo "building $crate $version once, into $root" >&2
        # A folder of its own for what is built, so that the project's target directory stays the project's. Run
        # from there too, or this repository's pinned toolchain and profiles would apply.
        (cd / && CARGO_TARGET_DIR="$root/build" timeout "$seconds" \
            cargo install "$crate@$version" --locked --debug --quiet --force --root "$root") >&2 || return 1
        rm -rf "$root/build"
        echo "$version" >"$root/bin/$crate.version"
    fi
    echo "$root/bin/$crate"
}
