# A mail server's and a database's writing, by one worker: `load.pl DIR WORKER STEPS`. What it has made durable can be told from what it
# writes next: it begins step n + 1 when all of step n is.
my ($dir, $worker, $steps) = @ARGV;
my ($kept, $slots) = (8, 16);

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

mkdir $dir or die "$dir: $!\n";
mkdir "$dir/mail" or die "$dir/mail: $!\n";
open(my $table, '+>', "$dir/table") or die "table: $!\n";
put($table, slot(0)) for 1 .. $slots;
fsync($table);
open(my $log, '+>', "$dir/log") or die "log: $!\n";
fsync($log);
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
    put($log, sprintf('VLOG %02d %08d ', $worker, $step) . '.' x 46 . "\n");
    fsync($log);
}
