//! fio in a guest that has a disk of every back end: the same guest measures them all, in turns.

use std::time::{Duration, Instant};

use vlane_bench::blkio::WITHIN;
use vlane_cost::{Role, Sampler, ThreadFilter};
use vlane_guest::{Guest, Initramfs};
use vlane_testbed::{Interrupt, Machines, Maker, Result, Server, fio, pause, trouble, wait};

use super::plan::Load;
use super::{Options, Sample, per_request};

/// Longest time to boot on a busy machine with an emulated CPU.
const BOOT: Duration = Duration::from_secs(120);
/// Longest that fio may take to load or to end there.
const TURN: Duration = Duration::from_secs(60);
/// A guest that lives longer than any measurement.
const LIFE: Duration = Duration::from_secs(4 * 3600);

/// Runs fio on command, and prints fio's result as one line. No scheduler of the guest's is
/// between.
const SCRIPT: &str = r#"
stty -echo 2>/dev/null
for disk in @DISKS@; do
    tries=0
    while [ ! -b /dev/$disk ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    [ -b /dev/$disk ] || { echo "no disk $disk"; exit 1; }
    echo none > /sys/block/$disk/queue/scheduler
done
echo "RESULT ready=1"
cd /tmp
while read -r id disk rate depth ramp time; do
    rm -f /tmp/answer
    fio --name="$id" --filename=/dev/$disk --direct=1 --ioengine=libaio --thread --rw=randread --bs=4096 --norandommap \
        --randseed=1 --iodepth="$depth" --rate_iops="$rate" --time_based --ramp_time="$ramp" --runtime="$time" --disk_util=0 \
        --exec_prerun="/gate $id" --output-format=terse --terse-version=3 --output=/tmp/answer < /dev/null > /tmp/said 2>&1
    status=$?
    [ $status -eq 0 ] || cat /tmp/answer /tmp/said
    echo "RESULT line.$id=$(grep '^3;' /tmp/answer)"
    rm -f /tmp/said /tmp/*.txt
done
"#;

const GATE: &str = "#!/bin/sh\necho \"RESULT begin.$1=1\" > /dev/console\n";

/// The guest, and the back ends of its disks.
pub(super) struct InGuest<'a> {
    guest: Guest,
    machines: Machines,
    servers: Vec<Server>,
    /// Measurements so far.
    count: u32,
    interrupt: &'a Interrupt,
}

impl<'a> InGuest<'a> {
    /// Boots it.
    pub(super) fn boot(
        maker: &Maker,
        machines: Machines,
        servers: Vec<Server>,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let disks: Vec<_> = (0..servers.len()).map(disk).collect();
        let initramfs = Initramfs::new(SCRIPT.replace("@DISKS@", &disks.join(" ")))
            .programs(["fio"])
            .file("gate", 0o755, GATE);
        let sockets = servers.iter().map(|server| server.socket().to_path_buf()).collect();
        let mut guest = maker.start(sockets, &initramfs, LIFE)?;
        wait(&mut guest, "ready", BOOT, interrupt)?;
        Ok(Self { guest, machines, servers, count: 0, interrupt })
    }

    /// One measurement of the back end at `place`. Back end and guest are looked at from outside,
    /// in the middle of the time.
    pub(super) fn measure(
        &mut self,
        place: usize,
        load: &Load,
        options: &Options,
    ) -> Result<Sample> {
        let Self { guest, servers, count, interrupt, .. } = self;
        let (time, ramp) = options.times();
        *count += 1;
        let id = format!("m{count}");
        guest.send(&format!(
            "{id} {} {} {} {}ms {}ms\n",
            disk(place),
            load.rate.unwrap_or(0),
            load.depth,
            ramp.as_millis(),
            time.as_millis()
        ))?;
        let backend = servers.get(place).map(Server::pid).unwrap_or_default();
        let mut roles = vec![Role::new("back end", backend.cast_signed(), ThreadFilter::All)];
        roles.extend(Role::program("guest", guest.id().cast_signed()));
        let mut sampler = Sampler::new(roles);
        wait(guest, &format!("begin.{id}"), TURN, interrupt)?;
        let begin = Instant::now();
        let mut look = |part: f64| {
            pause(begin + ramp + time.mul_f64(part), interrupt)?;
            Result::Ok(sampler.take())
        };
        let before = look(WITHIN[0])?;
        let used = look(WITHIN[1])?.since(&before);
        let line = wait(guest, &format!("line.{id}"), time + TURN, interrupt)?;
        if line.is_empty() {
            return Err(trouble(guest, "fio failed in the guest"));
        }
        let (_, told) = fio::parse(&line, 4096)?;
        let (backend_cpu_us, switches_per_io) = per_request(&used, 0, told.iops)?;
        let (guest_cpu_us, _) = per_request(&used, 1, told.iops)?;
        let cpu_us = match self.machines {
            Machines::Qemu => backend_cpu_us + guest_cpu_us,
            Machines::Uml => backend_cpu_us,
        };
        Ok(Sample {
            iops: told.iops,
            mb_per_second: told.mb_per_second,
            p50_us: told.p50_us,
            p99_us: told.p99_us,
            cpu_us,
            backend_cpu_us,
            guest_cpu_us: Some(guest_cpu_us),
            switches_per_io,
            ..Sample::default()
        })
    }
}

/// The guest's name of the disk at a place.
fn disk(place: usize) -> String {
    format!("vd{}", ('a'..='z').nth(place).unwrap_or('z'))
}
