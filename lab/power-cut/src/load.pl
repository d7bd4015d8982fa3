# What one worker writes: `load.pl DIR WORKER STEPS LOAD`. What it has made durable can be told from what it writes next: it begins
# step n + 1 when all of step n is.
my ($dir, $worker, $steps, $load) = @ARGV;
my ($kept, $slots) = (8, 16);
# Of the mail server: mails that come at once, steps until one is read, and until it is removed.
my ($burst, $unread, $stored) = (3, 4, 16);
my $accounts = 16;

sub fsync     { syscall(74, fileno $_[0]) == 0 or die "fsync: $!\n" }
sub fdatasync { syscall(75, fileno $_[0]) == 0 or die "fdatasync: $!\n" }
sub put       { syswrite($_[0], $_[1]) == length $_[1] or die "write: $!\n" }

sub fsync_directory {
    open(my $directory, '<', $_[0]) or die "$_[0]: $!\n";
    fsync($directory);
}

# `size` bytes that say whose they are.
sub text {
    my ($words, $size) = @_;
    return substr($words x (1 + $size / length $words), 0, $size);
}

sub slot {
    my ($step) = @_;
    return join '', map { text(sprintf('SLOT %02d %08d %d ', $worker, $step, $_), 512) } 0 .. 7;
}

sub mail {
    my ($step) = @_;
    return text(sprintf('mail %02d %08d ', $worker, $step), 1 + ($step * 7919 + $worker * 104729) % 12000);
}

sub begin_log {
    open(my $log, '+>', "$dir/log") or die "log: $!\n";
    fsync($log);
    return $log;
}

sub note {
    my ($log, $step) = @_;
    put($log, sprintf('VLOG %02d %08d ', $worker, $step) . '.' x 46 . "\n");
    fsync($log);
}

# Mails that come and go, rows that are written over, a log.
sub files {
    mkdir "$dir/mail" or die "$dir/mail: $!\n";
    open(my $table, '+>', "$dir/table") or die "table: $!\n";
    put($table, slot(0)) for 1 .. $slots;
    fsync($table);
    my $log = begin_log();
    fsync_directory("$dir/mail");
    fsync_directory($dir);

    for my $step (1 .. $steps) {
        # A mail comes, as a mail server takes it; an old one goes.
        open(my $file, '+>', "$dir/mail/new") or die "mail: $!\n";
        put($file, mail($step));
        fsync($file);
        close $file;
        rename("$dir/mail/new", "$dir/mail/$step") or die "rename: $!\n";
        fsync_directory("$dir/mail");
        unlink("$dir/mail/" . ($step - $kept)) if $step > $kept;
        # A row is written over, as a database does it.
        sysseek($table, ($step % $slots) * 4096, 0);
        put($table, slot($step));
        fdatasync($table);
        # All of that is durable: the log says so.
        note($log, $step);
    }
}

# A Maildir: several mails come at once, are read some time, and removed.
sub maildir {
    mkdir "$dir/$_" or die "$dir/$_: $!\n" for 'tmp', 'new', 'cur';
    my $log = begin_log();
    fsync_directory($dir);

    for my $step (1 .. $steps) {
        for my $mail (map { $step * $burst + $_ } 0 .. $burst - 1) {
            open(my $file, '+>', "$dir/tmp/$mail") or die "tmp/$mail: $!\n";
            put($file, mail($mail));
            fsync($file);
            close $file;
            rename("$dir/tmp/$mail", "$dir/new/$mail") or die "rename: $!\n";
        }
        fsync_directory("$dir/new");
        note($log, $step);
        # Nobody has to keep these: a mail may be read once more.
        for my $n (0 .. $burst - 1) {
            my ($read, $old) = (($step - $unread) * $burst + $n, ($step - $stored) * $burst + $n);
            rename("$dir/new/$read", "$dir/cur/$read") or die "read: $!\n" if $step > $unread;
            unlink("$dir/cur/$old") or die "unlink: $!\n" if $step > $stored;
        }
    }
}

# Transactions for sqlite3, which prints nothing of them: the text of each row says of which transaction it is. One more than the steps, which
# shows that the last one was told.
sub sqlite {
    # Half of the workers with a write-ahead log, half with a rollback journal, which FULL makes durable where it is truncated, not where it is
    # deleted (that takes EXTRA).
    my $journal = $worker % 2 ? 'WAL' : 'TRUNCATE';
    print "PRAGMA journal_mode=$journal;\nPRAGMA synchronous=FULL;\nPRAGMA wal_autocheckpoint=40;\n";
    print "CREATE TABLE log(step INTEGER PRIMARY KEY, content TEXT);\n";
    print "CREATE TABLE counter(value INTEGER);\nINSERT INTO counter VALUES(0);\n";
    print "CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER);\n";
    print "INSERT INTO accounts VALUES($_, 100);\n" for 0 .. $accounts - 1;
    for my $step (1 .. $steps + 1) {
        my $size = 17 + ($step * 7919 + $worker * 104729) % 6000;
        my $content = text(sprintf('VTXN %02d %08d;', $worker, $step), $size);
        my ($from, $to) = ($step % $accounts, $step * 7 % $accounts);
        print "BEGIN;\nINSERT INTO log VALUES($step, '$content');\nUPDATE counter SET value = $step;\n";
        print "UPDATE accounts SET balance = balance - 1 WHERE id = $from;\n";
        print "UPDATE accounts SET balance = balance + 1 WHERE id = $to;\nCOMMIT;\n";
    }
}

unless ($load eq 'sqlite') {
    mkdir $dir or die "$dir: $!\n";
}
my %loads = (files => \&files, mail => \&maildir, sqlite => \&sqlite);
$loads{$load}->();
