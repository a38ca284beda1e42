# Volumes of a cell with two file servers, in cellar mount. Arguments: CELL SHARE SECOND PROGRAMS
# METRICS
cell=$1 share=$2 second=$3 programs=$4 metrics=$5
fail() { echo "FAIL: $*"; exit 1; }
is() { [ "$1" = "$2" ] || fail "$3: '$1' instead of '$2'"; }
holds() { is "$(cat "$1" 2>&1)" "$2" "$1"; }
refused() { # TEXT COMMAND...
    local text=$1 said
    shift
    ! said=$(LC_ALL=C "$@" 2>&1) || fail "not refused: $*"
    [[ $said == *"$text"* ]] || fail "$*: told '$said', not '$text'"
}
host() { # COMMAND...: the test runs it outside of the mount
    echo "$*" >"$share/asked.new" && mv "$share/asked.new" "$share/asked"
    for _ in $(seq 1200); do
        [ -e "$share/asked" ] || { [ "$(cat "$share/result")" = 0 ] || fail "$*"; return; }
        sleep 0.05
    done
    fail "no end: $*"
}
cd "$AFS/.$cell" || fail "no cell"

# The volume that a mount point leads to. proj has 1 in the backup, 2 in the read-only copies and 3
# in the read-write volume.
ln -s '#far.cell:proj.' proj/far && ln -s '%far.cell:proj.' proj/far.rw || fail "no mount points of another cell"
echo 1 >proj/file && echo 1 >proj/deep/file || fail "no files"
host vos backup proj
host vos backup deep
echo 2 >proj/file && echo 2 >proj/deep/file
host release
# The mount keeps the location of a volume for some minutes.
"$CELLAR" fs checkvolumes >/dev/null || fail "checkvolumes"
echo 3 >proj/file && echo 3 >proj/deep/file
for line in proj/file=3 proj/rw/file=3 proj.rw/file=3 proj.ro/file=2 proj.bk/file=1 \
    proj/deep/file=3 proj.rw/deep/file=3 proj.ro/deep/file=2 proj.bk/deep/file=2 proj.ro/rw/file=3 proj.bk/rw/file=3 \
    proj/old/file=1 proj.ro/old/file=1 proj.bk/rw/old/file=1 \
    proj/far/file=2 proj/far.rw/file=3 proj.bk/far/deep/file=2; do
    holds "${line%=*}" "${line#*=}"
done
# From a backup volume, no path leads into a backup volume. A volume that is mounted within itself
# is detected. Neither is followed without end.
refused 'Too many levels' ls proj/old/old/
refused 'Too many levels' cat proj.bk/old/file
refused 'Read-only file system' touch proj.ro/new
refused 'Read-only file system' touch proj.bk/new
is "$(stat -c %d.%i proj/self proj/self/self)" "$(stat -c %d.%i proj proj)" "the number of a volume's root"
refused 'loop' timeout 30 find proj/self -name file
timeout 60 find proj -name file >"$share/found" 2>/dev/null
[ $? != 124 ] || fail "find does not end: $(wc -l <"$share/found") files"
grep -qx proj/old/deep/file "$share/found" || fail "find has not found proj/old/deep/file"

# Volumes by cell and name, which no directory lists; a vnode of a volume by its numbers.
by_name=$AFS/.:mount/$cell
holds "$by_name:proj/file" 3
holds "$by_name:proj.readonly/file" 2
holds "$by_name:proj.backup/file" 1
number() { getfattr --only-values -n afs.fid "$1" 2>/dev/null || "$CELLAR" fs getfid "$1" | sed 's/.*(\(.*\)).*/\1/'; }
fid=$(number proj/file)
holds "$by_name:${fid%%.*}/file" 3
holds "$by_name:$(tr . : <<<"$fid")" 3
holds "$AFS/.:mount/far.cell:proj/file" 3
echo new >"$by_name:proj/by-name" && holds proj/by-name new
rm "$by_name:proj/by-name"
refused 'No such device' ls "$AFS/.:mount/$cell:no.such"
for name in "$cell" no.cell:proj "$cell:proj:1" "$cell:proj:x:1" "$cell:"; do refused 'No such file' ls "$AFS/.:mount/$name"; done
is "$(ls -A "$AFS/.:mount")" '' "the list of all volumes"
! ls -A "$AFS" | grep -qF .:mount || fail ".:mount is listed"
refused 'Read-only file system' mkdir "$AFS/.:mount/new"

# The first release of root.cell is visible at once after each of these commands, and so is the end
# of its read-only volume.
root=$(number "$AFS/$cell")
for way in "flushmount $AFS/$cell" checkvolumes flushall; do
    host first_release
    # shellcheck disable=SC2086 # words
    "$CELLAR" fs $way >/dev/null || fail "fs $way"
    [ "$(number "$AFS/$cell")" != "$root" ] || fail "after $way $cell is the read-write volume"
    host no_release
    # shellcheck disable=SC2086 # words
    "$CELLAR" fs $way >/dev/null || fail "fs $way"
    is "$(number "$AFS/$cell")" "$root" "the volume of $cell after $way"
done
refused 'No such file' "$CELLAR" fs flushmount "$AFS/no.such.cell"

# A release is visible after the mount has checked the volume.
echo 4 >proj/file
holds proj.ro/file 2
host vos release proj
for _ in $(seq 200); do [ "$(cat proj.ro/file)" = 2 ] || break; sleep 0.1; done
holds proj.ro/file 4

# A volume moves to the second server and back while a program has one of its files open.
rm -f "$share/ready" "$share/stop"
"$programs/moving.py" "$PWD/moved" "$share/ready" "$share/stop" >"$share/moving" 2>&1 &
mover=$!
for _ in $(seq 600); do [ ! -e "$share/ready" ] || break; sleep 0.05; done
host there_and_back
touch "$share/stop"
wait $mover || fail "moved under a program: $(cat "$share/moving")"
echo "-- moved there and back: $(cat "$share/moving")"

# One site of a read-only volume is silent: the other one serves it.
calls() { "$programs/http-get.py" "$metrics" | awk -v name="cellar_rpc_seconds_count{server=\"$1:7000\"} " 'index($0, name) == 1 { print $2 }'; }
before=$(calls "$second")
for i in 1 2 3; do holds "copied/f$i" "copy $i"; done
[ "$(calls "$second")" -gt "${before:-0}" ] || fail "the second server is not the first to be asked"
[ ! -d there/ready ] && mkdir there/ready || fail "nothing is made on the second server"
host silent
from=$SECONDS
for i in $(seq 4 30); do holds "copied/f$i" "copy $i"; done
echo "-- one of two copies silent: 27 files in $((SECONDS - from)) s"

# Only files of the silent server wait; files of the other server do not.
mkdir there/d 2>"$share/told" &
waiting=$!
for i in $(seq 5); do
    echo "$i" >"here/x$i" && holds "here/x$i" "$i" && mkdir "here/d$i" || fail "on the server that is not silent"
done
kill -0 $waiting 2>/dev/null || fail "another server's work ended only after the silent one was given up: $(cat "$share/told")"
wait $waiting && fail "a silent server made a directory"
grep -q 'timed out' "$share/told" || fail "told: $(cat "$share/told")"
said=$("$CELLAR" fs checkservers -fast -noresolve) && fail "the mount has met nobody silent: $said"
[[ $said == *"problems:  $second." ]] || fail "met silent: $said"
said=$("$CELLAR" fs checkservers -noresolve) && fail "nobody is silent: $said"
[[ $said == *"problems:  $second." ]] || fail "silent: $said"
host back
for _ in $(seq 60); do ! mkdir there/after 2>/dev/null || break; sleep 1; done
[ -d there/after ] || fail "it does not go on"
