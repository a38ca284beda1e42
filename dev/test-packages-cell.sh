#!/usr/bin/env bash
# The packages on four machines: a cell of three servers with a Kerberos realm, and a client. Sourced
# shellcheck disable=SC2154 # variables of dev/test-packages
# by dev/test-packages. The steps are those of docs/operating/install.md.

PASSWORD=correct-horse

cell_installs() {
    local machine
    boot db 192.0.2.10 && boot fs1 192.0.2.11 && boot fs2 192.0.2.12 && boot desk 192.0.2.20 || return 1
    for machine in db fs1 fs2 desk; do put $machine 1; done
    install_in db cellar-tools cellar-server && install_in fs1 cellar-tools cellar-server &&
        install_in fs2 cellar-tools cellar-server && install_in desk cellar-tools cellar-client || return 1
    [ -z "${CELLAR_FORMER:-}" ] || for machine in db fs1 fs2 desk; do install -m 755 "$CELLAR_FORMER" "$home/$machine/usr/bin/cellar"; done
}

realm_begins() {
    local machine
    for machine in db fs1 fs2 desk; do
        printf '[libdefaults]\n default_realm = EXAMPLE.ORG\n dns_lookup_kdc = false\n[realms]\n EXAMPLE.ORG = {\n  kdc = kdc\n  admin_server = kdc\n }\n[domain_realm]\n example.org = EXAMPLE.ORG\n' \
            >"$home/$machine/etc/krb5.conf"
    done
    on db "kdb5_util create -s -r EXAMPLE.ORG -P $PASSWORD && systemctl start krb5-kdc" &&
        on db "kadmin.local -q 'addprinc -randkey -e aes256-cts-hmac-sha1-96:normal afs/example.org' &&
            kadmin.local -q 'ktadd -e aes256-cts-hmac-sha1-96:normal -k /root/afs.keytab afs/example.org' &&
            kadmin.local -q 'addprinc -pw $PASSWORD alice' && kadmin.local -q 'addprinc -pw $PASSWORD ben'"
}

databases_begin() {
    on db "cp /usr/share/doc/cellar-server/examples/databases.toml /etc/cellar/cellar.toml && systemctl start cellar" &&
        on db "cellar key import-keytab /root/afs.keytab && rm /root/afs.keytab && cellar key list"
}

# join MACHINE ADDRESS OPTION...
join() {
    local machine=$1 address=$2
    shift 2
    cp -a "$home/db/var/lib/cellar/server-etc" "$home/$machine/root/" &&
        on "$machine" "sed 's/192.0.2.11/$address/' /usr/share/doc/cellar-server/examples/fileserver.toml >/etc/cellar/cellar.toml" &&
        on "$machine" "systemd-run --quiet --unit cellar-join --service-type=notify cellar serve --join /root/server-etc $*" &&
        on "$machine" "systemctl stop cellar-join; systemctl start cellar && rm -r /root/server-etc"
}

servers_join() {
    join fs1 192.0.2.11 --first-volumes && join fs2 192.0.2.12 && wait_for db "cellar status"
}

users_begin() {
    on db "cellar pts createuser alice && cellar pts createuser ben && cellar pts adduser alice system:administrators" &&
        on db "cellar bos adduser db alice" && on fs1 "cellar bos adduser fs1 alice" && on fs2 "cellar bos adduser fs2 alice" &&
        on db "cellar vos create fs2 a user.ben -maxquota 1G && cellar vos create fs1 a software && cellar vos addsite fs2 a software"
}

desk_mounts() {
    mkdir -p "$home/desk/etc/openafs"
    cp "$home/db/var/lib/cellar/client-etc"/{CellServDB,ThisCell} "$home/desk/etc/openafs/"
    on desk "echo 'none /afs cellar _netdev 0 0' >>/etc/fstab && mkdir -p /afs && mount /afs" &&
        on desk "useradd -m alice && useradd -m ben && useradd -m carol && su alice -c 'echo $PASSWORD | kinit alice && cellar login'" &&
        on desk "su alice -c 'cellar fs mkmount /afs/.example.org/ben user.ben && cellar fs setacl /afs/.example.org/ben ben all && cellar fs mkmount /afs/.example.org/software software && cellar fs setacl /afs/.example.org/software system:anyuser read'"
}

ben_works() {
    on desk "su ben -c 'echo $PASSWORD | kinit ben && cellar login && echo thesis >/afs/example.org/ben/thesis && cat /afs/example.org/ben/thesis'" || return 1
    # carol has no token, and no rights there.
    ! on desk "su carol -c 'cat /afs/example.org/ben/thesis'" &&
        ! on desk "su ben -c 'echo x >/afs/.example.org/file'"
}

alice_releases_and_moves() {
    on desk "su alice -c 'echo program >/afs/.example.org/software/program && cellar vos release software'" &&
        on db "cellar vos move user.ben fs2 a fs1 a" && on desk "su ben -c 'grep -q thesis /afs/example.org/ben/thesis'"
}

lost_databases_come_back() {
    on db "systemctl start cellar-export" || return 1
    local archive
    archive=$(cd "$home/db" && ls var/backups/cellar/example.org-*.tar | tail -n 1)
    cp "$home/db/$archive" "$home/cell.tar"
    # The machine is lost with its disk. A new one gets its name and address.
    halt db
    mv "$home/db" "$home/db.lost" && mkdir "$home/db"
    boot db 192.0.2.10 && put db 1 && install_in db cellar-tools cellar-server || return 1
    cp "$home/cell.tar" "$home/db/root/"
    on db "cellar db import /root/cell.tar --dir /var/lib/cellar && rm /root/cell.tar" &&
        on db "cp /usr/share/doc/cellar-server/examples/databases.toml /etc/cellar/cellar.toml && systemctl start cellar" &&
        wait_for db "cellar status" && on db "cellar pts examine alice" &&
        on desk "su ben -c 'grep -q thesis /afs/example.org/ben/thesis && echo more >>/afs/example.org/ben/thesis'"
}

machines_upgrade() {
    local machine from=fs1 to=fs2
    # Two versions beside each other, after each step: files, a move in each direction, a release.
    for machine in fs1 db fs2; do
        put $machine 2 && install_in $machine cellar-tools cellar-server && wait_for db "cellar status" &&
            on desk "su ben -c 'echo line >>/afs/example.org/ben/thesis'" &&
            on db "cellar vos move user.ben $from a $to a && cellar vos move user.ben $to a $from a" &&
            on desk "su alice -c 'echo $machine >>/afs/.example.org/software/program && cellar vos release software'" &&
            on desk "su ben -c 'tail -n 1 /afs/example.org/software/program'" | grep -x $machine || return 1
    done
    put desk 2 && install_in desk cellar-tools cellar-client && on desk "su ben -c 'grep -c line /afs/example.org/ben/thesis'" | grep -x 3
}

step "a cell: installation on four machines" cell_installs &&
    step "a cell: a Kerberos realm" realm_begins &&
    step "a cell: databases" databases_begin &&
    step "a cell: two file servers join, cellar status" servers_join &&
    step "a cell: users, superusers, volumes" users_begin &&
    step "a cell: a mount by fstab, tokens, mount points" desk_mounts &&
    step "a cell: a user stores files, others are refused" ben_works &&
    step "a cell: a release and a move" alice_releases_and_moves &&
    step "a cell: one machine after the other is upgraded" machines_upgrade &&
    step "a cell: the databases' machine is lost and made again from an archive" lost_databases_come_back
