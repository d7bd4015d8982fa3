//! Parts of the scripts of guests with readers and a foreground.

/// Requirements of bash and script(1) in a guest.
const TERMINAL: &str = r"stty -echo 2>/dev/null
mkdir -p /dev/pts /dev/shm /run
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
export TERM=linux SHELL=/usr/bin/bash
";

/// Starts readers of the disk `$dev`. Waits until most of them have a request there, for two
/// minutes at the longest. A guest may have fewer tags than readers.
const CROWD_READS: &str = r"    fio --name=crowd --filename=/dev/$dev --readonly @PART@ --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=1 \
        --thread --numjobs=@READERS@ --group_reporting --norandommap --time_based --runtime=36000 --disk_util=0 \
        --clat_percentiles=0 --lat_percentiles=1 --output-format=terse --terse-version=3 --output=/tmp/crowd \
        < /dev/null > /tmp/crowd.said 2>&1 &
    crowd=$!
    tries=0
    reading=0
    while [ $reading -lt @ENOUGH@ ] && [ $tries -lt 600 ]; do
        sleep 0.2
        read -r reading writing < /sys/block/$dev/inflight
        tries=$((tries + 1))
    done
";

/// Starts vlane-fg if `$raise` is 1; `$rc` is the name of the shell's start file.
const AGENT_BEGINS: &str = r#"    agent=
    rc=plain
    if [ "$raise" = 1 ]; then
        vlane-fg daemon > /tmp/agent.said 2>&1 &
        agent=$!
        rc=raised
        sleep 0.5
    fi
"#;

/// Ends vlane-fg, if it was started.
const AGENT_ENDS: &str = r#"    if [ -n "$agent" ]; then
        kill $agent || cat /tmp/agent.said
        wait $agent
    fi
"#;

/// A script with its parts in the places of their names: `@TERMINAL@`, `@CROWD_READS@`,
/// `@AGENT_BEGINS@`, `@AGENT_ENDS@`, each a line. fio has so many readers, and `part` limits them
/// to a part of the disk.
pub(crate) fn with_parts(script: &str, readers: u16, part: &str) -> String {
    let (all, enough) = (readers.to_string(), (u32::from(readers) * 8 / 10).to_string());
    let parts = [
        ("@TERMINAL@\n", TERMINAL),
        ("@CROWD_READS@\n", CROWD_READS),
        ("@AGENT_BEGINS@\n", AGENT_BEGINS),
        ("@AGENT_ENDS@\n", AGENT_ENDS),
        ("@PART@", part),
        ("@READERS@", &all),
        ("@ENOUGH@", &enough),
    ];
    parts.iter().fold(script.to_owned(), |script, (name, part)| script.replace(name, part))
}
