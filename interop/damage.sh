# For tests that damage each file of a stopped server in turn. The file is missing, empty,
# truncated, or has flipped bits. $IT_DIR/good has the undamaged files, under the names that they
# have in $IT_DIR. SEED=N repeats a run. FLIPS=N flips N bits of each file, each in a run of its
# own.
#
# A test defines a function `outcome WHAT`. It starts the damaged server, checks it and ends it. It
# prints each fault. If there is none, it sets $ended to right or refused.
seed=${SEED:-$RANDOM}
right=0 refused=0 bad=0
echo "SEED=$seed"

# good_is PART...: saves these parts of the stopped server.
good_is() {
    local part
    rm -rf "$IT_DIR/good"
    mkdir "$IT_DIR/good"
    for part; do cp -a --sparse=always "$IT_DIR/$part" "$IT_DIR/good/$part"; done
}

# good_again: restores them.
good_again() {
    local part
    for part in "$IT_DIR"/good/*; do
        rm -rf "$IT_DIR/${part##*/}"
        cp -a --sparse=always "$part" "$IT_DIR/"
    done
}

# is_refusal LOG PROGRAM: whether a server that ended has printed the reason.
is_refusal() { grep -q "^$2: " "$1" && ! grep -q panicked "$1"; }

damage() { # WHAT COMMAND...
    local what=$1
    shift
    good_again
    "$@" || fail "$what: cannot be done"
    ended=''
    outcome "$what" >"$IT_DIR/wrong"
    if [ ! -s "$IT_DIR/wrong" ] && [ -n "$ended" ]; then
        case $ended in right) right=$((right + 1)) ;; refused) refused=$((refused + 1)) ;; esac
    else
        bad=$((bad + 1))
        sed "s|^|FAIL $what: |" "$IT_DIR/wrong"
    fi
}

flip() { # FILE SEED
    python3 - "$1" "$2" <<'P'
import os, random, sys
path, r = sys.argv[1], random.Random(sys.argv[2])
size = os.path.getsize(path)
with open(path, "r+b") as f:
    # Most of a journal consists of zeros that were never written.
    used = [at for at in range(0, size, 4096) if (f.seek(at), f.read(4096).strip(b"\0"))[1]] or [0]
    at = min(r.choice(used) + r.randrange(4096), size - 1)
    f.seek(at)
    byte = f.read(1)[0] ^ 1 << r.randrange(8)
    f.seek(at)
    f.write(bytes([byte]))
P
}

# damage_all PATH FLIPS: damages each file at or below a path of $IT_DIR/good. Files that do not
# affect the answers of a cell are left out.
damage_all() {
    local file n
    while read -r file; do
        case $file in lock | */lock | */reserve | */client-etc/* | */audit.log) continue ;; esac
        damage "$file missing" rm "$IT_DIR/$file"
        damage "$file empty" truncate -s 0 "$IT_DIR/$file"
        damage "$file cut" truncate -s "$(($(stat -c %s "$IT_DIR/good/$file") / 2))" "$IT_DIR/$file"
        [ -s "$IT_DIR/good/$file" ] || continue
        for n in $(seq "${FLIPS:-$2}"); do damage "$file, flip $n" flip "$IT_DIR/$file" "$seed $file $n"; done
    done < <(cd "$IT_DIR/good" && find "$1" -type f -print | sort)
}

damage_ends() {
    [ $bad = 0 ] || fail "$bad of $((bad + right + refused)) are neither right nor refused (SEED=$seed)"
    say "$right right or EIO, $refused refused (SEED=$seed)"
}
