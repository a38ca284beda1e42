# Kerberos in the tests: a realm beside the servers, the cell's key in them, and commands as the
# realm's users. A test that uses it has 'needs: ... kerberos' and sources this file.
#
#   admin   superuser (UserList), in system:administrators      alice, bob   ordinary users
#   kdc     the realm's directory, in the share that every client sees

kdc=$share/kdc
users_etc=$share/etc

# realm_up: starts the KDC at the servers' address, and adds its key and users to the servers and
# the protection database.
realm_up() {
    local log=$IT_DIR/realm.log kvno user i
    mkdir -p "$users_etc"
    echo "$IT_CELL" >"$users_etc/ThisCell"
    printf '>%s #for tests\n%s #vl.%s\n' "$IT_CELL" "$IT_ADDR" "$IT_CELL" >"$users_etc/CellServDB"
    "$interop/kdc/kdc" up --dir "$kdc" --cell "$IT_CELL" --addr "$IT_ADDR" --netns "$IT_NETNS" || fail "no KDC"
    # Also after a failed test. A subshell (at_openafs) would end the KDC at its own end.
    [ "$BASH_SUBSHELL" != 0 ] || trap realm_down EXIT
    case $IT_PEER in
    cellar)
        administer key import-keytab "$kdc/afs.keytab" &&
            administer bos adduser "$IT_ADDR" admin &&
            administer pts createuser admin && administer pts adduser admin system:administrators
        ;;
    openafs)
        kvno=$(klist -k "$kdc/afs.keytab" | awk '$1 ~ /^[0-9]+$/ { print $1; exit }')
        administer asetkey add rxkad_krb5 "$kvno" 18 "$kdc/afs.keytab" "afs/$IT_CELL" &&
            touch "$IT_DIR/server/etc/server/CellServDB" && # servers read their keys again some time after that changed
            for i in $(seq 60); do administer vos status "$IT_ADDR" -localauth >/dev/null 2>&1 && break; sleep 0.5; done
        ;;
    esac >"$log" 2>&1 || { cat "$log"; fail "the servers do not take the realm's key"; }
    for user in alice bob; do
        administer_pts createuser $user >>"$log" 2>&1 || { cat "$log"; fail "no user $user"; }
    done
}
realm_down() { "$interop/kdc/kdc" down --dir "$kdc" >/dev/null; }

# administer COMMAND...: runs a subcommand of cellar, or one of OpenAFS's programs, beside the
# servers, with the cell's key.
administer() {
    case $IT_PEER in
    cellar) at_server env CELLAR_DIR="$IT_DIR/server" "$CELLAR" "$@" ;;
    openafs) "$interop/openafs-cell/cell" run --dir "$IT_DIR/server" -- "$@" ;;
    esac
}
administer_pts() {
    case $IT_PEER in
    cellar) administer pts "$@" ;;
    openafs) administer pts "$@" -localauth ;;
    esac
}

# as USER COMMAND...: OpenAFS's command with USER's token, on a client's side of the network.
# 'nobody' has no token.
as() { at_client "$interop/as" --dir "$IT_DIR/users" --kdc "$kdc" --etc "$users_etc" --cell "$IT_CELL" "$@"; }

# cellar_as USER COMMAND...: a cellar command with USER's token, on a client's side.
cellar_as() {
    local user=$1 cache=$IT_DIR/users/$1.krb5cc
    shift
    mkdir -p "$IT_DIR/users"
    [ "$user" = nobody ] || [ -e "$cache" ] ||
        KRB5_CONFIG=$kdc/krb5.conf at_client "$CELLAR" login "$user" --cell "$IT_CELL" --keytab "$kdc/$user.keytab" \
            --cache "FILE:$cache" --kernel never >/dev/null || fail "no token for $user"
    at_client env KRB5_CONFIG="$kdc/krb5.conf" KRB5CCNAME="FILE:$cache" CELLAR_CELLSERVDB="$users_etc/CellServDB" "$CELLAR" "$@"
}
