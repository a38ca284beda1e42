# `cellar fs` as users of AFS type it, in a directory of the mount. Arguments: CELL SHARE
cell=$1 share=$2
export CELLAR_NO_DNS=1
unset CELLAR_DIR CELLAR_CELLSERVDB
fail() { echo "FAIL: $*"; exit 1; }
fs() { "$CELLAR" fs "$@"; }
says() { # TEXT WORDS...: the command prints exactly TEXT
    local expected=$1 said
    shift
    said=$(fs "$@" 2>"$share/error") || fail "fs $*: $(cat "$share/error")"
    [ "$said" = "$expected" ] || fail "fs $*: '$said' instead of '$expected'"
}
begins() { # PATTERN WORDS...: a line of the output matches
    local pattern=$1 said
    shift
    said=$(fs "$@" 2>&1) || fail "fs $*: $said"
    grep -q "$pattern" <<<"$said" || fail "fs $*: no '$pattern' in '$said'"
}
refused() { # TEXT WORDS...
    local expected=$1 said
    shift
    ! said=$(fs "$@" 2>&1) || fail "fs $*: not refused: $said"
    [[ $said == *"$expected"* ]] || fail "fs $*: '$said' does not say '$expected'"
}
cd "$AFS/.$cell/fsvol" || fail "no volume"

# Operations of the servers, by paths in the mount.
# Directories with a deleted user in their lists: setacl and copyacl remove the entry, as OpenAFS's
# commands do.
mkdir ghost ghost2 && begins '^  1234 rl$' listacl ghost
says '' copyacl ghost ghost2 && says '' setacl ghost system:authuser mail -id
says "Access list for ghost is
Normal rights:
  system:administrators rlidwka
  system:authuser lik
  system:anyuser rlidwka

Access list for ghost2 is
Normal rights:
  system:administrators rlidwka
  system:anyuser rlidwka" listacl ghost ghost2 -if
says "Access list for . is now
Normal rights:
  system:administrators rlidwka
  system:anyuser rlidwka" cleanacl
says 'Access list for . is fine.' cleanacl .
says "Access list for . is
Normal rights:
  system:administrators rlidwka
  system:anyuser rlidwka" listacl .
says "$(fs listacl .)" la
mkdir d && echo hello >d/f || fail "a file"
says '' setacl d system:anyuser rlidwkaA
begins 'system:anyuser rlidwkaA$' listacl "$AFS/.$cell/fsvol/d"
[ "$(fs listacl d/f | tail -n +2)" = "$(fs listacl d | tail -n +2)" ] || fail "the list of a file is not its directory's"
begins "^fs setacl -dir d -acl .*system:anyuser rlidwkaA$" listacl d -cmd
mkdir e && says '' copyacl d e && begins 'system:anyuser rlidwkaA$' listacl e
begins '^fsvol  *5000 ' listquota
begins '^fsvol  *4.9M ' lq . -human
refused 'Only superusers of the cell set the quota' setquota . 6000
begins '^fsvol  *5000 ' listquota
(export CELLAR_DIR="$share/../server" && says '' setquota . 6000 && begins '^fsvol  *6000 ' listquota . && says '' setquota . 5000) || exit 1
begins '% of quota used\.$' quota
begins '^Volume Name  *kbytes  *used  *avail %used$' diskfree
begins '^fsvol  *[0-9.]*[KMGT]  *[0-9.]*[KMGT]  *[0-9.]*[KMGT]  *[0-9]*%\(<<.*\)\?$' df . -human
begins '^File d/f (' examine d/f
begins '^Current disk quota is 5000$' examine
(
    export CELLAR_DIR="$share/../server"
    begins '"quota_kib": 6144' setquota -max 6M -json && begins '^fsvol  *6144 ' listquota . || exit 1
    says '' setvol . -max 5000 -offlinemsg 'moved on Monday' && begins '^Current offline message is moved on Monday$' examine . || exit 1
    refused 'nothing to set' setvol . && refused "'5X' is not a quota" setvol -max 5X
) || exit 1
begins '^Current disk quota is 5000$' examine
begins "^File d/f ([0-9]*\.[0-9]*\.[0-9]*) located in cell $cell$" getfid d/f
[ "$(fs getfid d d/f | wc -l)" = 2 ] || fail "getfid of two: $(fs getfid d d/f)"
says 'Callers access to d is rlidwkaA
Callers access to . is rlidwka' gca d .
begins '"access": "rlidwka"' getcalleraccess -json
begins '^File d is on host ' whereis d
says "File . lives in cell '$cell'" whichcell
begins "^d/f (.*): 6 bytes on the file server's own disk$" osd d/f
says "This workstation belongs to cell '$cell'" wscell
says '' mkmount m fsvol
says "'m' is a mount point for volume '#fsvol'" lsmount m
says "'$PWD/m' is a mount point for volume '#fsvol'" lsmount "$PWD/m"
says "'m/' is a mount point for volume '#fsvol'" lsmount m/
ln -s m link && ln -s "../$(basename "$PWD")/link" link2
for link in link link2; do says "'$link' is a symbolic link, leading to a mount point for volume '#fsvol'" lsmount $link; done
rm link link2
for dots in . .. m/.. ./.; do refused "'$dots': you may not use '.' or '..' as the last component" lsmount $dots; done
# A path outside of AFS is reported as such, independent of the known cells.
for words in 'listacl /tmp' 'setacl /tmp x read' 'setquota /tmp 5' 'quota /tmp' 'lsmount /tmp' 'rmmount /tmp/x'; do
    # shellcheck disable=SC2086
    refused 'not an AFS path' $words
done
refused 'either -id or -if' copyacl . . -id -if
refused 'Missing second half of user/access pair' setacl . x
refused "illegal rights character 'x'" setacl . y rxl
says 'The current down server probe interval is 60 secs' checkservers -interval 0
[ "$(cat m/d/f)" = hello ] || fail "the mount point leads elsewhere"
begins "^File m ([0-9]*\.1\.1) located in cell $cell$" getfid m
[ "$(fs getfid m/ -literal)" != "$(fs getfid m/)" ] || fail "getfid -literal of a mount point: $(fs getfid m/ -literal)"
says '' flushmount m/
[ "$(cat m/d/f)" = hello ] || fail "the mount point leads nowhere after flushmount"
says '' rmmount m/
[ ! -e m ] || fail "the mount point is still there"
begins '"text": "#fsvol"' mkmount m/ fsvol -json && begins '"removed": true' rmmount m -json
said=$(fs mkmount m fsvol -cell "$cell" 2>&1) && [ -z "$said" ] || fail "fs mkmount -cell: $said"
says "'m' is a mount point for volume '#$cell:fsvol'" lsmount m
[ "$(cat m/d/f)" = hello ] && says '' rmm -mountpoint m || fail "the mount point with a cell leads elsewhere"
begins "^fs: warning, volume no.such does not exist in cell $cell\.$" mkmount m no.such && says '' rmmount m
begins "^fs: warning, cannot check the target of #x\.y:v: cell x\.y is not known" mkmount m v -cell x.y
says "'m' is a mount point for volume '#x.y:v'" lsmount m && says '' rmmount m
refused 'is not a mount point' lsmount d
refused 'nosuch/: no such file or directory' lsmount nosuch/
refused "may not use '.'" lsmount .

(cd "$AFS" && refused 'the list of cells is on no server' la) || exit 1
refused 'the list of cells is on no server' la "$AFS"

# Operations of the mount.
cat d/f >/dev/null
used() { fs getcacheparms -json | sed -n 's/.*"used_kib": \([0-9]*\).*/\1/p'; }
begins "^AFS using [0-9]* of the cache's available 262144 1K byte blocks\.$" getcacheparms
begins '^ .*% of the cache files (' getcacheparms -files
[ "$(used)" -gt 0 ] || fail "nothing is cached"
says '' flush d/f
[ "$(used)" = 0 ] || fail "flush leaves $(used) KiB"
[ "$(cat d/f)" = hello ] && [ "$(used)" -gt 0 ] || fail "what was flushed is not read again"
says '' flushvolume .
[ "$(used)" = 0 ] || fail "flushvolume leaves $(used) KiB"
[ "$(cat d/f)" = hello ] || fail "the volume is not read again"
begins '"flushed": "file"' flush d/f -json && begins '"flushed": "volume"' flushvolume . -json && begins '"flushed": "all"' flushall -json
says '' flushall
[ "$(used)" = 0 ] || fail "flushall leaves $(used) KiB"
says 'All volumeID/name mappings checked.' checkvolumes
[ "$(cat d/f)" = hello ] || fail "nothing is found after checkvolumes"
says 'New cache size set.' setcachesize 100000
begins 'available 100000 1K' getcacheparms
says 'New cache size set.' cachesize -reset
begins 'available 262144 1K' getcacheparms
refused 'at least 65536 KiB' setcachesize 10
mkdir one && echo 1 >one/f && mkdir two && echo 2 >two/f
says 'fs: new sysname set.' sysname one
[ "$(cat @sys/f)" = 1 ] || fail "@sys is $(cat @sys/f)"
says "Current sysname is 'one'" sysname
says 'fs: new sysname list set.' sysname -newsys none two one
[ "$(cat @sys/f)" = 2 ] || fail "@sys is $(cat @sys/f)"
says "Current sysname list is 'none' 'two' 'one'" sysname
says 'Security level is currently clear.' getcrypt
refused 'no key to encrypt with' setcrypt on
refused 'must be "on" or "off"' setcrypt perhaps
says "Cell $cell status: no setuid allowed" getcellstatus "$cell"
refused "no such cell as 'x.y'" getcellstatus x.y
# Other cells, and aliases.
refused "the cell named 'other.cell' does not exist" newalias o other.cell
says '' newcell other.cell 192.0.2.7
begins '^Cell other.cell on hosts 192.0.2.7\.$' listcells -numeric
says '' newalias here "$cell"
refused 'in use by an existing cell' newalias other.cell "$cell"
says "Alias here for cell $cell" listaliases
[ "$(readlink "$AFS/here") $(readlink "$AFS/.here")" = "$cell .$cell" ] || fail "an alias is no link: $(ls -l "$AFS")"
[ "$(cat "$AFS/.here/fsvol/d/f")" = hello ] || fail "the alias leads elsewhere"
[ "$(find "$AFS" -maxdepth 1 -type l)" = "$AFS/here" ] || fail "links in the root: $(find "$AFS" -maxdepth 1 -type l)"
# A mount point gets the cell name that other machines know, even if this mount has an alias.
says '' newalias there other.cell && says '' mkmount m/ fsvol -cell here && says '' mkmount n root.cell -c there -fast
says "'m' is a mount point for volume '#$cell:fsvol'
'n' is a mount point for volume '#other.cell:root.cell'" lsmount m n
says '' rmmount m n/

# Servers that answer, and some that do not.
says 'All servers are running.' checkservers
says 'All servers are running.' checkservers -cell "$cell"
says 'All servers are running.' checks "$cell" -interval 300
refused 'network or server problems:  192.0.2.7.' checkservers -cell other.cell -noresolve
refused 'network or server problems:  192.0.2.7.' checks -all -noresolve
refused 'x.y is not known' checkservers -cell x.y
says 'All servers are running.' checkservers -fast
(cd "$AFS" && says 'All servers are running.' checkservers) || exit 1
(cd / && says 'All servers are running.' checkservers -at "$AFS" && refused 'not in a mount' checkservers -fast) || exit 1

# A user who is not root and did not mount it.
other() { setpriv --reuid 12345 --regid 12345 --clear-groups "$CELLAR" fs "$@" 2>&1; }
for words in 'setcachesize 100000' 'sysname x' 'newcell x.y 192.0.2.1' "newalias y $cell" flushall checkvolumes 'storebehind -allfiles 1'; do
    # shellcheck disable=SC2086 # words
    ! said=$(other $words) && [[ $said == *'requires root access'* ]] || fail "another user: fs $words: $said"
done
said=$(other flush d/f) && said=$(other sysname) || fail "another user: $said"

# Store behind.
says 'Default store asynchrony is 0 kbytes.' storebehind
says '' storebehind -allfiles 64
says 'Will store d/f according to default.
Default store asynchrony is 64 kbytes.' storebehind -files d/f -verbose
says 'Will store up to 0 kbytes of d/f asynchronously.
Default store asynchrony is 64 kbytes.' sb -kbytes 0 -files d/f -verbose
refused 'you must specify -files with -kbytes' storebehind -kbytes 5
for i in $(seq 200); do echo "behind $i" >d/behind$i || fail "store behind"; done
for _ in $(seq 100); do
    [ "$(fs listunstored)" != 'Everything is stored.' ] || break
    sleep 0.1
done
says 'Everything is stored.' listunstored
echo last >d/last
