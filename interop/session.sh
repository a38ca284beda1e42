# Runs one session of a client's commands against OpenAFS's servers and against Cellar's. A test
# that uses it has 'needs: tools kerberos openafs cellar' and sources this file after realm.sh.
#
# Cellar's cell is the runner's. OpenAFS's cell is at the place of the second client. The commands
# run at the first client, as users of one realm that both cells trust.

OPENAFS_ADDR=10.99.0.22

# principal NAME...: adds users to the realm.
principal() {
    local name
    for name; do
        "$interop/kdc/kdc" admin --dir "$kdc" -- addprinc -pw "$name-password" "$name"
        "$interop/kdc/kdc" admin --dir "$kdc" -- ktadd -norandkey -k "$kdc/$name.keytab" "$name"
    done >>"$IT_DIR/realm.log" 2>&1
}

# other_realm_up: starts OTHER.REALM, which the realm trusts. Its alice is 'foreign' in sessions,
# without a token until aklog.
other_realm_up() {
    other=$share/other-kdc
    "$interop/kdc/kdc" up --dir "$other" --realm OTHER.REALM --cell other.realm --addr "$IT_ADDR" --netns "$IT_NETNS" &&
        "$interop/kdc/kdc" trust --dir "$kdc" --with "$other" || fail "no other realm"
}
other_realm_down() { "$interop/kdc/kdc" down --dir "$other" >/dev/null; }
as_foreign() {
    local own=$IT_DIR/users/foreign
    mkdir -p "$own/tokens"
    at_client env KRB5_CONFIG="$other/krb5.conf" KRB5CCNAME="FILE:$own/krb5cc" bash -c '
        [ -e "$0/krb5cc" ] || kinit -k -t "$1/alice.keytab" alice@OTHER.REALM || exit
        export AFSCONF=$2 CELLAR_TEST_TOKENS=$0/tokens LD_PRELOAD=$3
        shift 3
        exec "$@"' "$own" "$other" "$users_etc" "$IT_DIR/users/token-holder.so" "$@"
}

# at_openafs FUNCTION...: runs a function with OpenAFS's cell in the place of Cellar's.
at_openafs() {
    local client=$IT_NETNS-c1
    (
        IT_PEER=openafs IT_DIR=$IT_DIR/openafs IT_ADDR=$OPENAFS_ADDR IT_NETNS=$IT_NETNS-c2 users_etc=$share/etc.openafs
        at_client() { ip netns exec "$client" "$@"; }
        mkdir -p "$IT_DIR"
        "$@"
    )
}

# id_of NAME: the id of a volume on the server, even if the location database does not have it.
id_of() { at_client vos listvol "$IT_ADDR" -noauth -config "$users_etc" -quiet 2>/dev/null | awk -v n="$1" '$1 == n { print $2 }'; }

# session NAME TRANSCRIPT: runs the commands of sessions/NAME. In commands, @SERVER@ is the server's
# address, @ID:NAME@ the id of a volume, @DUMPS@ the directory sessions/dumps, and @TMP@ a directory
# for this server. In answers, SERVER stands for that address, DATE for any date and ID for any
# volume's id.
session() {
    local line who words date="[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9]{2} [0-9:]{8} [0-9]{4}" tmp=$IT_DIR/session
    local uuid='[0-9a-f]{8}(-[0-9a-f]{4}){2}(-[0-9a-f]{2}){2}-[0-9a-f]{12}'
    mkdir -p "$tmp"
    while IFS= read -r line; do
        [[ $line =~ ^([a-z]+):\ (.*)$ ]] || continue
        who=${BASH_REMATCH[1]}
        echo "$line"
        line=${BASH_REMATCH[2]//@SERVER@/$IT_ADDR}
        line=${line//@TMP@/$tmp}
        while [[ $line =~ @ID:([^@]+)@ ]]; do
            line=${line//@ID:${BASH_REMATCH[1]}@/$(id_of "${BASH_REMATCH[1]}")}
        done
        read -ra words <<<"${line//@DUMPS@/dumps}"
        (
            cd "$interop/sessions" || exit
            case $who in
            foreign) as_foreign "${words[@]}" ;;
            *) as "$who" timeout 60 "${words[@]}" ;;
            esac </dev/null 2>&1
            echo "status $?"
        ) | tr -d "\r" | sed -E "s/$IT_ADDR/SERVER/g; s/$date/DATE/g; s/5368[0-9]{5}/ID/g; s#$tmp#TMP#g; s/$uuid/UUID/g; s/[0-9]+ KB on/N KB on/; s/\\b1[0-9]{9}\\b/TIME/
            s/[0-9]+ (K|KB|MB|GB|TB)( blocks)? (out of|free)/N \\1\\2 \\3/g; s/(total:? )[0-9]+/\\1N/; s/^/    /"
    done <"$interop/sessions/$1" >"$2"
}

# compare NAME: checks that both transcripts are equal, except for the differences that
# sessions/NAME.differences explains.
compare() {
    local counted
    counted=$("$programs/compare-sessions.py" "$IT_DIR/$1.openafs" "$IT_DIR/$1.cellar" "$interop/sessions/$1.differences") || {
        echo "$counted"
        fail "$1: the answers differ"
    }
    say "$1: ${counted##*$'\n'}"
}
