# Runs inside the container, as a unit of its systemd. Each check that fails is a line in /out/wrong; the last line of /out/done is "done".
wrong() { echo "$order: $*" >>/out/wrong; }

# Somebody in the group that may connect; the scheduler believes the back end's own user only.
front_end() { # user, volume
    setpriv --reuid "$1" --regid kvm --clear-groups \
        vlane-lab bench "/run/vlane/$2/disk.sock" --rw randread --bs 4k --time 100ms --ramp 0 >>/out/bench 2>&1
}

is() { # path, owner and mode as stat says them
    local found
    found=$(stat -c '%U:%G %a' "$1" 2>&1)
    [ "$found" = "$2" ] || wrong "$1 is $found, not $2"
}

told() { grep -c 'notifies the vCPU scheduler at /run/vlane-sched/sched.sock' /out/vlane@disk.service.log; }

# Its unit is up before its sockets are there.
listens() {
    for _ in $(seq 600); do
        [ -S /run/vlane-sched/sched.sock ] && return
        sleep 0.05
    done
}

all_is_well() { # when
    listens
    is /run/vlane/disk 'vlane:kvm 750'
    is /run/vlane/disk/disk.sock 'vlane:kvm 660'
    is /run/vlane-sched 'vlane-sched:vlane 755'
    is /run/vlane-sched/sched.sock 'vlane-sched:vlane 660'
    front_end qemu disk || wrong "$1: nobody in the group can use the disk"
    local before
    before=$(told)
    front_end vlane disk || wrong "$1: the volume's own user cannot use the disk"
    for _ in $(seq 600); do
        [ "$(told)" -gt "$before" ] && break
        sleep 0.05
    done
    [ "$(told)" -gt "$before" ] || wrong "$1: the scheduler is not told"
    systemctl is-active -q vlane@disk vlane-sched || wrong "$1: a unit has failed"
}

start() { # units
    systemctl "$@" || wrong "systemctl $*: $(systemctl status --no-pager -l "${@:2}" 2>&1)"
}

for order in 'vlane@disk vlane-sched' 'vlane-sched vlane@disk'; do
    for unit in $order; do
        start start "$unit"
    done
    all_is_well started
    for unit in $order; do
        start restart "$unit"
        all_is_well "after a restart of $unit"
    done
    # Another volume that runs as somebody else takes nothing away.
    start start vlane@other
    all_is_well 'beside another volume'
    systemctl stop vlane@other
    all_is_well 'after another volume'
    systemctl stop $order
    [ -e /run/vlane/disk/disk.sock ] && wrong 'a socket is left behind'
done

order='one volume'
start start vlane@disk
start reload vlane@disk
systemctl kill --kill-whom=main -s USR2 vlane@disk
for _ in $(seq 300); do
    grep -q 'upgraded in place' /out/vlane@disk.service.log && break
    sleep 0.1
done
grep -q 'upgraded in place' /out/vlane@disk.service.log || wrong 'the sandbox does not let a new program take over'
front_end qemu disk || wrong 'after an upgrade nobody can use the disk'
systemctl stop vlane@disk
[ "$(systemctl show -P Result vlane@disk)" = success ] || wrong 'it did not end well'

if [ -e /out/device ]; then
    mknod /dev/vlane-test b $(cat /out/device)
    chgrp disk /dev/vlane-test && chmod 660 /dev/vlane-test
    order='a block device'
    start start vlane@block
    front_end qemu block || wrong 'nobody can use the disk'
    systemctl stop vlane@block
fi
echo "done" >/out/done
systemctl --no-block poweroff
