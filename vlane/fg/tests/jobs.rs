//! A real bash in a pseudo-terminal: exactly its foreground is raised.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;

use common::{
    Daemon, PROGRAM, Shell, may_raise, members, renice, set_io_priority, until, until_it_has,
    values, values_of,
};

const RAISED: &str = "-10 be/0";
const OWN: &str = "0 none";
/// Seldom enough that what a test sees is not by chance, often enough to be quick.
const LOOKING: [&str; 3] = ["--no-events", "--every", "20ms"];

#[test]
fn job_goes_to_background_and_back() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    let _daemon = Daemon::new(&shell, &LOOKING);
    until_it_has(shell.pid(), RAISED);
    let job = shell.job("JOB");
    until_it_has(job, RAISED);
    until_it_has(shell.pid(), OWN);
    shell.stop();
    until_it_has(job, OWN);
    until_it_has(shell.pid(), RAISED);
    shell.line("bg");
    shell.answer("echo");
    until_it_has(job, OWN);
    shell.line("fg");
    until_it_has(job, RAISED);
    shell.keys("\x03");
    until_it_has(shell.pid(), RAISED);
}

/// All processes of the pipeline are raised; none that was started with an ampersand is.
#[test]
fn pipeline_is_raised_background_job_is_not() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    // A distinct value: other tests' daemons must not take an orphan for theirs.
    let _daemon = Daemon::new(&shell, &[&LOOKING[..], &["--nice", "-9"]].concat());
    until_it_has(shell.pid(), "-9 be/0");
    // It inherits what the raised shell has.
    let left = shell.job("JOB &");
    until_it_has(left, OWN);
    // An orphan in a separate session.
    let orphan = shell.job("(setsid JOB &)");
    until_it_has(orphan, OWN);
    let last = shell.job("sleep 1001 | sleep 1002 | JOB");
    until_it_has(last, "-9 be/0");
    let session = shell.pid();
    let raised = || {
        members(session)
            .into_iter()
            .filter(|pid| values(*pid).as_deref() == Some("-9 be/0"))
            .count()
    };
    until("three are raised", || (raised() == 3).then_some(()));
    assert_eq!(values(left).as_deref(), Some(OWN));
    shell.stop();
    until("only the shell is raised", || (raised() == 1).then_some(()));
    Command::new("kill").args(["-9", &orphan.to_string()]).status().unwrap();
}

#[test]
fn ended_shells_jobs_have_own_values() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    // A distinct value: other tests' daemons must not take an orphan for theirs.
    let _daemon = Daemon::new(&shell, &[&LOOKING[..], &["--nice", "-8"]].concat());
    until_it_has(shell.pid(), "-8 be/0");
    let left = shell.job("JOB & disown -a");
    shell.line("exit");
    shell.wait();
    until_it_has(left, OWN);
    Command::new("kill").args(["-9", &left.to_string()]).status().unwrap();
}

/// No I/O priority is different from the default one.
#[test]
fn each_thread_is_restored_exactly() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    // A distinct value, as above.
    let _daemon = Daemon::new(&shell, &[&LOOKING[..], &["--nice", "-11"]].concat());
    until_it_has(shell.pid(), "-11 be/0");
    let python = "import os,threading,time\n\
        for n in range(3): threading.Thread(target=time.sleep,args=(1000,),daemon=True).start()\n\
        time.sleep(1000)";
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), python).unwrap();
    shell.line(&format!("python3 {} &", script.path().display()));
    let job: i32 = shell.answer("echo $!").parse().unwrap();
    let threads = until("its threads", || {
        let threads = std::fs::read_dir(format!("/proc/{job}/task")).ok()?.flatten();
        let threads: Vec<i32> =
            threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        (threads.len() == 4).then_some(threads)
    });
    let all = |wanted: [&str; 4]| {
        until(&format!("{wanted:?}"), || {
            let has: Vec<_> = threads.iter().filter_map(|tid| values_of(job, *tid)).collect();
            (has == wanted).then_some(())
        });
    };
    all([OWN; 4]);
    // Level 4 of best effort, said; a nice value; a chosen class.
    set_io_priority(threads[1], 2 << 13 | 4);
    renice(threads[2], 3);
    set_io_priority(threads[3], 3 << 13);
    shell.line("fg");
    all(["-11 be/0", "-11 be/0", "-8 be/0", "-11 idle"]);
    shell.stop();
    all([OWN, "0 be/4", "3 none", "0 idle"]);
}

#[test]
fn value_set_by_hand_survives_daemon() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    let daemon = Daemon::new(&shell, &LOOKING);
    until_it_has(shell.pid(), RAISED);
    let job = shell.job("JOB");
    until_it_has(job, RAISED);
    // The daemon has seen it with what it runs now.
    daemon.until_status_has(&format!("{job} sleep"));
    renice(job, 7);
    set_io_priority(job, 2 << 13 | 6);
    shell.stop();
    until_it_has(shell.pid(), RAISED);
    shell.answer("echo");
    assert_eq!(values(job).as_deref(), Some("7 be/6"));
}

#[test]
fn nice_in_raised_shell_is_relative() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    let _daemon = Daemon::new(&shell, &LOOKING);
    until_it_has(shell.pid(), RAISED);
    // A job started in the very moment in which its shell is raised may have inherited or not.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let job = shell.job("nice -n 5 JOB &");
    until_it_has(job, "5 none");
    let job = shell.job("nice JOB &");
    until_it_has(job, "10 none");
    let job = shell.job("nice -n 5 JOB");
    until_it_has(job, "-5 be/0");
    shell.stop();
    until_it_has(job, "5 none");
}

/// The next daemon restores them, and so does `vlane-fg restore`.
#[test]
fn killed_daemons_changes_are_restored() {
    if !may_raise() {
        return;
    }
    let raised = "-7 be/0";
    // A distinct value: other tests' daemons must not take an orphan for theirs.
    let options = [&LOOKING[..], &["--nice", "-7"]].concat();
    let mut shell = Shell::bash();
    for by_restore in [true, false] {
        let daemon = Daemon::new(&shell, &options);
        let job = shell.job("JOB");
        until_it_has(job, raised);
        shell.stop();
        until_it_has(job, OWN);
        until_it_has(shell.pid(), raised);
        let dir = daemon.dir.clone();
        let _temporary = daemon.kill();
        // Started by a shell that is not restored.
        let job = shell.job("JOB &");
        assert_eq!(values(job).as_deref(), Some(raised));
        // An orphan in a separate session.
        let orphan = shell.job("(setsid JOB &)");
        assert_eq!(values(orphan).as_deref(), Some(raised));
        if by_restore {
            let restore =
                Command::new(PROGRAM).args(["restore", "--state-dir"]).arg(&dir).output().unwrap();
            assert!(restore.status.success(), "{restore:?}");
            for pid in [job, orphan, shell.pid()] {
                assert_eq!(values(pid).as_deref(), Some(OWN));
            }
        } else {
            let _next = Daemon::at(&shell, &dir, &options);
            until_it_has(job, OWN);
            until_it_has(orphan, OWN);
            until_it_has(shell.pid(), raised);
        }
        Command::new("kill").args(["-9", &orphan.to_string()]).status().unwrap();
        assert_eq!(
            values(shell.pid()).as_deref(),
            Some(OWN),
            "an ended daemon gives back what it has raised"
        );
    }
}

/// No further thread is raised.
#[test]
fn unwritable_record_restores_all_threads() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    let daemon = Daemon::new(&shell, &LOOKING);
    let job = shell.job("JOB");
    until_it_has(job, RAISED);
    until_it_has(shell.pid(), OWN);
    let in_the_way = daemon.dir.join("record.new");
    until("no new record", || std::fs::create_dir(&in_the_way).ok());
    shell.stop();
    until_it_has(job, OWN);
    assert_eq!(values(shell.pid()).as_deref(), Some(OWN));
    std::fs::remove_dir(&in_the_way).unwrap();
    until_it_has(shell.pid(), RAISED);
}

#[test]
fn process_without_main_thread_is_alive() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    let _daemon = Daemon::new(&shell, &LOOKING);
    // The system call itself: pthread_exit would unwind through the interpreter.
    let python = format!(
        "import ctypes,threading,time\n\
         threading.Thread(target=time.sleep,args=(1000,)).start()\n\
         ctypes.CDLL(None).syscall({}, 0)",
        libc::SYS_exit
    );
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), python).unwrap();
    shell.line(&format!("python3 {} &", script.path().display()));
    let job: i32 = shell.answer("echo $!").parse().unwrap();
    let other = until("its main thread ends", || {
        let stat = std::fs::read_to_string(format!("/proc/{job}/task/{job}/stat")).ok()?;
        let threads = std::fs::read_dir(format!("/proc/{job}/task")).ok()?.flatten();
        let other = threads
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .find(|tid| *tid != job);
        stat.contains(") Z ").then_some(other).flatten()
    });
    let has = |wanted: &str| {
        until(wanted, || {
            let has = values_of(job, other).expect("the job lives");
            (has == wanted).then_some(())
        });
    };
    has(OWN);
    shell.line("fg");
    has(RAISED);
    // Ctrl-Z ends no thread: the others are stopped with the process.
    shell.stop();
    has(OWN);
}

#[test]
fn hangup_signal_does_not_end_daemon() {
    if !may_raise() {
        return;
    }
    let mut shell = Shell::bash();
    let daemon = Daemon::new(&shell, &LOOKING);
    until_it_has(shell.pid(), RAISED);
    let pid = rustix::process::Pid::from_raw(daemon.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    // It keeps working: had it ended, no thread would be raised any more.
    let job = shell.job("JOB");
    until_it_has(job, RAISED);
    until_it_has(shell.pid(), OWN);
}

#[test]
fn directory_has_one_daemon() {
    let shell = Shell::bash();
    let daemon = Daemon::new(&shell, &LOOKING);
    let second =
        Command::new(PROGRAM).args(["daemon", "--state-dir"]).arg(&daemon.dir).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("runs already"), "{second:?}");
}

#[test]
fn run_raises_command_without_daemon() {
    let mut shell = Shell::bash();
    let job = shell.job(&format!("{PROGRAM} run --nice -4 --io-priority be/1 -- JOB"));
    let nice = values(job).unwrap().split(' ').next().unwrap().to_owned();
    until_it_has(job, &format!("{nice} be/1"));
    if may_raise() {
        assert_eq!(nice, "-4");
    }
    let wrong = Command::new(PROGRAM).args(["run", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1));
    let wrong = Command::new(PROGRAM)
        .args(["run", "--io-priority", "be/8", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

/// A reader may stop after the first line; a full disk is an error with words.
#[test]
fn short_reader_is_fine_full_disk_fails() {
    let temporary = tempfile::tempdir().unwrap();
    let printing = |to: std::process::Stdio, what: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(what).arg("--state-dir").arg(temporary.path()).stdout(to).output().unwrap()
    };
    let closed = || {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        std::process::Stdio::from(write)
    };
    for (what, code) in [(&["hook", "bash"][..], 0), (&["status"], 1), (&["restore"], 0)] {
        let output = printing(closed(), what);
        assert_eq!(output.status.code(), Some(code), "{what:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = printing(full.into(), &["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("standard output: No space left"),
        "{output:?}"
    );
}
