# Checks of a name space in the current directory; ends at the first failure.
# names.sh root CELL | names.sh volume SHARE
is() { [ "$1" = "$2" ] || { echo "$3: '$1' instead of '$2'"; exit 1; }; }
must() { "$@" || { echo "failed: $*"; exit 1; }; }
refuse() { ! "$@" 2>/dev/null || { echo "must fail: $*"; exit 1; }; }

case $1 in
root)
    is "$(ls)" "$2" "names in the root"
    must ls "$2/" ".$2/" @cell >/dev/null
    is "$(stat -c %i .)" 1 "the number of the root"
    refuse ls no.such.cell
    refuse mkdir new
    must cd "$2"
    is "$(cd .. && ls)" "$2" "back in the root"
    ;;
volume)
    must mkdir -p names/a names/b
    must cd names
    must sh -c 'echo one >a/file'
    must ln a/file a/second
    must ln -s a/file link
    is "$(cat link)" one "through a symbolic link"
    is "$(readlink link)" a/file "the text of a link"
    is "$(stat -c %h a/file)" 2 "names of a file"
    refuse ln a/file b/other
    must rm a/second
    is "$(stat -c %h a/file)" 1 "names of a file"
    must mv a/file b/moved
    is "$(cat b/moved)" one "a moved file"
    refuse ls a/file
    refuse rmdir b
    must chmod 640 b/moved
    is "$(stat -c %a b/moved)" 640 "mode"
    must touch -d @1000000000 b/moved
    is "$(stat -c %Y b/moved)" 1000000000 "time"
    must touch -d @-5.5 b/moved
    is "$(stat -c %Y b/moved)" 0 "a time before 1970"
    must touch -d @4294967301 b/moved
    is "$(stat -c %Y b/moved)" 4294967295 "a time after 2106"
    exec 5<>b/moved
    must rm b/moved
    refuse ls b/moved
    echo more >&5
    is "$(cat /proc/self/fd/5)" more "a removed file that is open"
    exec 5>&-
    # The kernel reports a last close after close(2) has returned.
    for _ in $(seq 100); do [ -n "$(ls -A b)" ] || break; sleep 0.1; done
    is "$(ls -A b)" "" "left in a directory"
    must mv b a/
    must rmdir a/b a
    must rm link
    must cd ..
    must rmdir names
    [ "$(df --output=size . | tail -n 1)" -gt 0 ] || { echo "no room"; exit 1; }
    must sh -c 'head -c 3000000 /dev/urandom >big'
    must truncate -s 1000001 big
    is "$(stat -c %s big)" 1000001 "a length"
    md5sum <big >"$2/sum"
    ;;
esac
