# Programs from crates.io for checks and tests. Each is built once into the cache, without
# optimisation, because the build takes much longer than all runs. Sourced.

# crate_tool CRATE VERSION SECONDS [OPTION...]: prints the path of its program, which has the crate's
# name. OPTIONs are those of `cargo install`.
crate_tool() {
    local crate=$1 version=$2 seconds=$3 root=${CELLAR_CACHE:-$HOME/.cache/cellar}/tools
    shift 3
    if [ "$(cat "$root/bin/$crate.version" 2>/dev/null)" != "$version" ] || [ ! -x "$root/bin/$crate" ]; then
        echo "building $crate $version once, into $root" >&2
        # A separate target directory, so that the project's stays unchanged. The build also runs
        # there, because this repository's pinned toolchain and profiles must not apply.
        (cd / && CARGO_TARGET_DIR="$root/build" timeout "$seconds" \
            cargo install "$crate@$version" --locked --debug --quiet --force --root "$root" "$@") >&2 || return 1
        rm -rf "$root/build"
        echo "$version" >"$root/bin/$crate.version"
    fi
    echo "$root/bin/$crate"
}
