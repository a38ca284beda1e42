# open_files_test KEPT LIMIT [OPTIONS of on_mount]: a program has 2,000 files open at a time, while
# the mount's limit is LIMIT descriptors.
open_files_test() {
    local kept=$1 limit=$2
    shift 2
    # shellcheck disable=SC2016 # for the shell of the mount
    printf '#!/bin/sh\nulimit -n %s && exec "%s" "$@"\n' $limit "$(realpath "$CELLAR")" >"$IT_DIR/limited"
    chmod 755 "$IT_DIR/limited"
    # shellcheck disable=SC2016
    CELLAR=$IT_DIR/limited on_mount "$@" bash -c '
        [ "$(awk "/^Max open files/ { print \$4 }" /proc/$CLIENT_PID/limits)" = $2 ] || { grep "open files" /proc/$CLIENT_PID/limits; exit 1; }
        mkdir "$AFS/$0" && "$1/open-files.py" "$AFS/$0" 2000 && "$1/open-files.py" --again "$AFS/$0" 2000' $kept "$programs" $limit ||
        fail "a cache in $kept"
    # Another client has to fetch all of them.
    # shellcheck disable=SC2016
    CELLAR=$IT_DIR/limited on_mount -2 "${@/%\/cache//another}" bash -c '"$1/open-files.py" --again "$AFS/$0" 2000' $kept "$programs" ||
        fail "another client with a cache in $kept"
    say "2,000 files open, $limit descriptors, a cache in $kept"
}
