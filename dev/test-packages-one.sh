#!/usr/bin/env bash
# The packages on one machine, from the installation to the purge. Sourced by dev/test-packages.
# shellcheck disable=SC2154 # variables of dev/test-packages

one_installs() {
    boot one 192.0.2.9 && put one 1 && install_in one cellar-tools cellar-server cellar-client || return 1
    # Without a configuration the service is enabled, and does not run.
    same enabled "$(on one systemctl is-enabled cellar)" && same inactive "$(on one systemctl is-active cellar)" &&
        same disabled "$(on one systemctl is-enabled cellar-afs)" && same active "$(on one systemctl is-active cellar-export.timer)"
}

one_serves() {
    on one "sed 's/192.0.2.10/192.0.2.9/' /usr/share/doc/cellar-server/examples/one-machine.toml >/etc/cellar/cellar.toml" &&
        on one "cellar config check" && on one "systemctl start cellar" && same active "$(on one systemctl is-active cellar)" &&
        on one "cellar status" && on one "cellar cp /etc/os-release /afs/example.org/scratch/ && cellar cat /afs/example.org/scratch/os-release | cmp - /etc/os-release"
}

one_has_names_of_afs() {
    on one "PATH=/usr/lib/cellar/bin:\$PATH; vos examine root.cell && pts listentries && fs help >/dev/null && bos status 192.0.2.9"
}

one_is_documented() {
    on one "man -w cellar cellar-vos-create cellar-db-export cellar-serve cellar.toml cellar-mount mount.cellar >/dev/null" &&
        on one "man cellar-vos-release | grep -q 'vos release'" &&
        same examine "$(on one "bash -c '. /usr/share/bash-completion/bash_completion; _comp_load cellar 2>/dev/null || __load_completion cellar; COMP_WORDS=(cellar vos exam); COMP_CWORD=2; _cellar_or_suite; echo \$COMPREPLY'")"
}

one_names_libraries() {
    on one "zcat /usr/share/doc/cellar-tools/libraries.txt.gz" >"$home/libraries.txt" &&
        grep -q '^tokio [0-9.]*: MIT; text ' "$home/libraries.txt" && grep -q 'Permission is hereby granted' "$home/libraries.txt" &&
        on one "grep -q libraries.txt.gz /usr/share/doc/cellar-tools/copyright"
}

one_mounts() {
    on one "mkdir -p /afs && echo 'none /afs cellar server=192.0.2.9,cell=example.org,_netdev 0 0' >>/etc/fstab && mount /afs" &&
        on one "cmp /afs/example.org/scratch/os-release /etc/os-release && echo text >/afs/example.org/scratch/file" &&
        on one "findmnt -n -t fuse.cellar /afs"
}

# The line is that of docs/operating/mounting.md. A look-up of the path counts as a use for autofs, so
# the kernel's list of mounts is read. findmnt with a path would look it up.
one_mounts_on_demand() {
    local mounted="grep -q ' /auto/scratch fuse.cellar ' /proc/mounts"
    on one "echo '/auto /etc/auto.cellar --timeout=5' >/etc/auto.master.d/cellar.autofs &&
        echo 'scratch  -fstype=cellar,server=192.0.2.9  :example.org\\:scratch' >/etc/auto.cellar && systemctl restart autofs" &&
        same text "$(on one "cat /auto/scratch/file")" && on one "$mounted" || return 1
    # autofs compares the time of the last use with the time-out, and ends the mount and its process.
    wait_for one "! $mounted && ! ps -eo args | grep -q '^/[^ ]*cellar mount /auto'" &&
        same text "$(on one "cat /auto/scratch/file")" && on one "$mounted" || return 1
    on one "systemctl stop autofs; rm /etc/auto.cellar /etc/auto.master.d/cellar.autofs" && wait_for one "! $mounted"
}

one_exports() {
    on one "systemctl start cellar-export && test -s /var/backups/cellar/example.org-*.tar" &&
        same 600 "$(on one 'stat -c %a /var/backups/cellar/*.tar')" && same 700 "$(on one 'stat -c %a /var/backups/cellar')"
}

one_upgrades() {
    local before after
    before=$(on one "systemctl show -P MainPID cellar")
    put one 2 && install_in one cellar-tools cellar-server cellar-client || return 1
    after=$(on one "systemctl show -P MainPID cellar")
    [ "$before" != "$after" ] || { echo "the service was not restarted"; return 1; }
    wait_for one "cellar status" && same text "$(on one "cat /afs/example.org/scratch/file")" &&
        on one "echo more >>/afs/example.org/scratch/file && cellar cat /afs/example.org/scratch/file | grep -q more"
}

one_goes_back() {
    put one 1 && install_in one cellar-tools cellar-server cellar-client && wait_for one "cellar status" &&
        on one "cellar cat /afs/example.org/scratch/file | grep -q more"
}

one_purges() {
    on one "umount /afs && dpkg --remove cellar-server" && same inactive "$(on one systemctl is-active cellar)" &&
        on one "test -e /etc/cellar/cellar.toml" && on one "dpkg --purge cellar-server cellar-client cellar-tools" &&
        on one "! test -e /etc/cellar && ! test -e /usr/bin/cellar && ! test -e /usr/sbin/mount.cellar && ! test -e /usr/lib/sysctl.d/60-cellar.conf" &&
        on one "test -e /var/lib/cellar/cell.json" &&
        same "" "$(on one "find / -xdev -name '*cellar*' -not -path '/root/*' -not -path '/var/lib/cellar*' -not -path '/proc/*' -not -path '/var/backups/*' -not -path '/var/log/*' -not -path '/var/cache/man/*' | sort | tr '\n' ' '")"
}

one_returns() {
    install_in one cellar-tools cellar-server &&
        on one "sed 's/192.0.2.10/192.0.2.9/' /usr/share/doc/cellar-server/examples/one-machine.toml >/etc/cellar/cellar.toml && systemctl start cellar" &&
        wait_for one "cellar status" && on one "cellar cat /afs/example.org/scratch/file | grep -q more"
}

lintian_is_content() {
    # No bug report asked for these packages.
    lintian --allow-root --suppress-tags initial-upload-closes-no-bugs,debug-file-with-no-debug-symbols --fail-on error,warning "$CELLAR_DEBS/1"/*.deb
}

# The program alone, in a directory that has nothing else.
static_serves() {
    local root=$home/static server
    mkdir -p "$root"/{proc,tmp,usr/bin,var/lib/cellar}
    cp "$1" "$root/usr/bin/cellar"
    mount -t proc none "$root/proc"
    chroot "$root" /usr/bin/cellar serve databases fileserver --cell example.org --bind 127.0.0.1 &
    server=$!
    for _ in $(seq 100); do
        sleep 0.2
        ! chroot "$root" /usr/bin/cellar status --dir /var/lib/cellar >/dev/null 2>&1 || break
    done
    chroot "$root" /usr/bin/cellar status --dir /var/lib/cellar &&
        chroot "$root" /usr/bin/cellar cp --dir /var/lib/cellar /usr/bin/cellar /afs/example.org/scratch/ &&
        chroot "$root" /usr/bin/cellar cat --dir /var/lib/cellar /afs/example.org/scratch/cellar | cmp - "$1"
    local rc=$?
    kill -INT $server
    wait $server
    umount "$root/proc"
    return $rc
}

# image_serves PROGRAM: a cell in a container, from the image. Runs in mounts of its own.
image_serves() {
    local context=$home/context volume=$home/volume rc
    local engine=(podman --root "$home/podman" --runroot "$home/podman-run" --storage-driver vfs --cgroup-manager cgroupfs --events-backend file)
    local run=(--network host --cgroups disabled --ulimit "nofile=$(limit n)" --ulimit "nproc=$(limit u)")
    # crun refuses a tree that has both versions of control groups.
    ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
    mkdir -p "$context" "$volume" && cp "$1" "$context/cellar" && cp LICENSE "$context" &&
        dev/licences --target "$(uname -m)-unknown-linux-musl" "$context/libraries.txt" &&
        "${engine[@]}" build -q --isolation chroot -t cellar --build-arg DIRECTORY=. -f packaging/Containerfile "$context" &&
        same "$("$1" --version)" "$("${engine[@]}" run --rm "${run[@]}" cellar --version)" || return 1
    "${engine[@]}" run -d --name cell "${run[@]}" -v "$volume:/var/lib/cellar" cellar \
        serve databases fileserver --cell example.org --bind 127.0.0.1 || return 1
    for _ in $(seq 100); do
        ! "${engine[@]}" exec cell /usr/bin/cellar status --dir /var/lib/cellar >/dev/null 2>&1 || break
        sleep 0.2
    done
    "${engine[@]}" exec cell /usr/bin/cellar status --dir /var/lib/cellar &&
        "${engine[@]}" exec cell /usr/bin/cellar cp --dir /var/lib/cellar /usr/share/doc/cellar/libraries.txt /afs/example.org/scratch/ &&
        "${engine[@]}" exec cell /usr/bin/cellar cat --dir /var/lib/cellar /afs/example.org/scratch/libraries.txt | cmp - "$context/libraries.txt" &&
        "${engine[@]}" stop -t 20 cell && "${engine[@]}" logs cell 2>&1 | grep -q 'INFO stopped'
    rc=$?
    "${engine[@]}" rm -f cell >/dev/null 2>&1
    return $rc
}

# A limit for a container, below that of this shell: without the right to raise limits, the engine's
# own one is refused.
limit() {
    local hard
    hard=$(ulimit -H"$1")
    [ "$hard" != unlimited ] && [ "$hard" -lt 10000 ] || hard=10000
    echo "$hard:$hard"
}

in_own_mounts() {
    home=$home unshare --mount --propagation private bash -c "$(declare -f same limit "$1"); $*"
}

on_demand() {
    if grep -qw autofs /proc/filesystems; then
        step "one machine: autofs" one_mounts_on_demand
    else
        skipped "one machine: autofs" "the kernel has no autofs"
    fi
}

static=${CELLAR_STATIC:-$(dev/toolchain target-directory)/$(uname -m)-unknown-linux-musl/dist/cellar}
if [ -e "$static" ]; then
    step "a static program in an empty directory" static_serves "$static"
else
    skipped "a static program" "'make static' has not made it"
fi
if command -v podman >/dev/null && [ -e "$static" ]; then
    step "an image for containers" in_own_mounts image_serves "$static"
else
    skipped "an image for containers" "no podman ('dev/packages install containers'), or no static program"
fi
step "lintian" lintian_is_content
step "one machine: installation" one_installs &&
    step "one machine: a cell, cellar status" one_serves &&
    step "one machine: vos, pts, fs, bos" one_has_names_of_afs &&
    step "one machine: manual pages, completion" one_is_documented &&
    step "one machine: licences of libraries" one_names_libraries &&
    step "one machine: fstab" one_mounts &&
    on_demand &&
    step "one machine: daily export" one_exports &&
    step "one machine: upgrade with a mount in use" one_upgrades &&
    step "one machine: the former version again" one_goes_back &&
    step "one machine: removal and purge" one_purges &&
    step "one machine: installation over the old files" one_returns
halt one
