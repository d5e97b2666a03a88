;; What Go's runtime asks of `wasi_snapshot_preview1`, answered with the host's own capabilities: output is log lines,
;; the time of day is the host's, and nothing else is there. So a plugin in Go imports no WASI, its import list is its
;; capability list, and a replay gives it what the recording has.
(module
  (import "env" "memory" (memory 0))
  (import "ostler:plugin/log@0.1.0" "write" (func $log (param i32 i32 i32 i32 i32)))
  (import "ostler:plugin/clock@0.1.0" "now" (func $now (result i64)))
  ;; Nanoseconds of the monotonic clock: one microsecond per look, so that a run is like the other.
  (global $ticks (mut i64) (i64.const 1))
  ;; State of the generator below. An instance lives for one call, so that nobody can learn it by asking.
  (global $seed (mut i64) (i64.const 0x2545F4914F6CDD1D))

  (func (export "clock_time_get") (param $clock i32) (param i64) (param $time i32) (result i32)
    (if (local.get $clock)
      (then
        (global.set $ticks (i64.add (global.get $ticks) (i64.const 1000)))
        (i64.store (local.get $time) (global.get $ticks)))
      (else
        (i64.store (local.get $time) (i64.mul (call $now) (i64.const 1000000)))))
    (i32.const 0))
  (func (export "clock_res_get") (param i32) (param $resolution i32) (result i32)
    (i64.store (local.get $resolution) (i64.const 1000000))
    (i32.const 0))

  ;; Seeds of maps and of math/rand (xorshift64): the same in each run.
  (func (export "random_get") (param $to i32) (param $length i32) (result i32)
    (local $x i64)
    (loop $next
      (if (local.get $length)
        (then
          (local.set $x (global.get $seed))
          (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
          (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
          (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
          (global.set $seed (local.get $x))
          (i64.store8 (local.get $to) (local.get $x))
          (local.set $to (i32.add (local.get $to) (i32.const 1)))
          (local.set $length (i32.sub (local.get $length) (i32.const 1)))
          (br $next))))
    (i32.const 0))

  ;; The text of a panic. The runtime prints it in pieces, and ends the instance without another call: so each line is reported
  ;; with all before it, and the host takes the last report. The SDK gives the memory, by a write to a descriptor that no program
  ;; has: a buffer, and the fields of the log line, of which the last value is the text.
  (global $buffer (mut i32) (i32.const 0))
  (global $size (mut i32) (i32.const 0))
  (global $fields (mut i32) (i32.const 0))
  (global $used (mut i32) (i32.const 0))

  ;; Reports the text: an error line with its first line, without `panic: `, as message.
  (func $report
    (local $start i32)
    (local $end i32)
    (local.set $start (global.get $buffer))
    (if (i32.eq (i32.load (local.get $start)) (i32.const 0x696E6170))
      (then (local.set $start (i32.add (local.get $start) (i32.const 7)))))
    (local.set $end (local.get $start))
    (block $found
      (loop $next
        (br_if $found (i32.ge_u (local.get $end) (i32.add (global.get $buffer) (global.get $used))))
        (br_if $found (i32.eq (i32.load8_u (local.get $end)) (i32.const 10)))
        (local.set $end (i32.add (local.get $end) (i32.const 1)))
        (br $next)))
    (i32.store offset=28 (global.get $fields) (global.get $used))
    (call $log
      (i32.const 4)
      (local.get $start) (i32.sub (local.get $end) (local.get $start))
      (global.get $fields) (i32.const 2)))

  ;; Keeps a piece of a panic: the first is `panic: ` or `fatal error: `, which no program prints alone. False for other output.
  (func $keep (param $text i32) (param $length i32) (result i32)
    (if (i32.eqz (global.get $buffer)) (then (return (i32.const 0))))
    (if (i32.eqz (global.get $used))
      (then
        (if (i32.or (i32.lt_u (local.get $length) (i32.const 7)) (i32.gt_u (local.get $length) (i32.const 13)))
          (then (return (i32.const 0))))
        (if (i32.or
              (i32.and
                (i32.eq (local.get $length) (i32.const 7))
                (i32.and
                  (i32.eq (i32.load (local.get $text)) (i32.const 0x696E6170)) ;; pani
                  (i32.eq (i32.load offset=3 (local.get $text)) (i32.const 0x203A6369)))) ;; ic:_
              (i32.and
                (i32.eq (local.get $length) (i32.const 13))
                (i64.eq (i64.load (local.get $text)) (i64.const 0x7265206C61746166)))) ;; fatal er
          (then)
          (else (return (i32.const 0))))))
    (if (i32.gt_u (local.get $length) (i32.sub (global.get $size) (global.get $used)))
      (then (local.set $length (i32.sub (global.get $size) (global.get $used)))))
    (memory.copy (i32.add (global.get $buffer) (global.get $used)) (local.get $text) (local.get $length))
    (global.set $used (i32.add (global.get $used) (local.get $length)))
    (if (i32.eq
          (i32.load8_u (i32.sub (i32.add (global.get $buffer) (global.get $used)) (i32.const 1)))
          (i32.const 10))
      (then (call $report)))
    (i32.const 1))

  ;; stdout is level info, stderr level warn; a write is a line.
  (func (export "fd_write") (param $fd i32) (param $parts i32) (param $count i32) (param $written i32) (result i32)
    (local $sum i32)
    (if (i32.eq (local.get $fd) (i32.const 0x6F73))
      (then
        (global.set $buffer (i32.load (local.get $parts)))
        (global.set $size (i32.load offset=4 (local.get $parts)))
        (global.set $fields (i32.load offset=8 (local.get $parts)))
        (return (i32.const 0))))
    (if (i32.gt_u (i32.sub (local.get $fd) (i32.const 1)) (i32.const 1)) (then (return (i32.const 8))))
    (loop $next
      (if (local.get $count)
        (then
          (if (i32.or
                (i32.eq (local.get $fd) (i32.const 1))
                (i32.eqz (call $keep (i32.load (local.get $parts)) (i32.load offset=4 (local.get $parts)))))
            (then
              (call $log
                (i32.add (local.get $fd) (i32.const 1))
                (i32.load (local.get $parts)) (i32.load offset=4 (local.get $parts))
                (i32.const 8) (i32.const 0))))
          (local.set $sum (i32.add (local.get $sum) (i32.load offset=4 (local.get $parts))))
          (local.set $parts (i32.add (local.get $parts) (i32.const 8)))
          (local.set $count (i32.sub (local.get $count) (i32.const 1)))
          (br $next))))
    (i32.store (local.get $written) (local.get $sum))
    (i32.const 0))

  ;; Nobody sleeps in a reconcile: whatever is waited for, its time has come.
  (func (export "poll_oneoff") (param $wanted i32) (param $happened i32) (param $count i32) (param $found i32)
    (result i32)
    (i32.store (local.get $found) (local.get $count))
    (loop $next
      (if (local.get $count)
        (then
          (i64.store (local.get $happened) (i64.load (local.get $wanted)))
          (i64.store offset=8 (local.get $happened) (i64.const 0))
          (i64.store offset=16 (local.get $happened) (i64.const 0))
          (i64.store offset=24 (local.get $happened) (i64.const 0))
          (if (i32.eqz (i32.load8_u offset=8 (local.get $wanted)))
            (then
              (if (i32.load16_u offset=40 (local.get $wanted))
                (then
                  (if (i64.gt_u (i64.load offset=24 (local.get $wanted)) (global.get $ticks))
                    (then (global.set $ticks (i64.load offset=24 (local.get $wanted))))))
                (else
                  (global.set $ticks
                    (i64.add (global.get $ticks) (i64.load offset=24 (local.get $wanted))))))))
          (local.set $wanted (i32.add (local.get $wanted) (i32.const 48)))
          (local.set $happened (i32.add (local.get $happened) (i32.const 32)))
          (local.set $count (i32.sub (local.get $count) (i32.const 1)))
          (br $next))))
    (i32.const 0))

  (func (export "sched_yield") (result i32) (i32.const 0))
  (func (export "proc_exit") (param i32) (unreachable))
  (func (export "proc_raise") (param i32) (result i32) (i32.const 52))

  ;; No arguments and no environment.
  (func $none (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (export "args_sizes_get" (func $none))
  (export "environ_sizes_get" (func $none))
  (func (export "args_get") (param i32 i32) (result i32) (i32.const 0))
  (func (export "environ_get") (param i32 i32) (result i32) (i32.const 0))

  ;; stdin, stdout and stderr are devices; other descriptors there are none (EBADF).
  (func (export "fd_fdstat_get") (param $fd i32) (param $stat i32) (result i32)
    (if (i32.gt_u (local.get $fd) (i32.const 2)) (then (return (i32.const 8))))
    (i64.store (local.get $stat) (i64.const 2))
    (i64.store offset=8 (local.get $stat) (i64.const -1))
    (i64.store offset=16 (local.get $stat) (i64.const 0))
    (i32.const 0))
  (func (export "fd_fdstat_set_flags") (param i32 i32) (result i32) (i32.const 0))
  (func $bad (param i32) (result i32) (i32.const 8))
  (export "fd_close" (func $bad))
  (export "fd_datasync" (func $bad))
  (export "fd_sync" (func $bad))
  (func $bad2 (param i32 i32) (result i32) (i32.const 8))
  (export "fd_prestat_get" (func $bad2))
  (export "fd_filestat_get" (func $bad2))
  (export "fd_tell" (func $bad2))
  (export "fd_renumber" (func $bad2))
  (export "sock_shutdown" (func $bad2))
  (func $bad3 (param i32 i32 i32) (result i32) (i32.const 8))
  (export "fd_prestat_dir_name" (func $bad3))
  (export "path_create_directory" (func $bad3))
  (export "path_remove_directory" (func $bad3))
  (export "path_unlink_file" (func $bad3))
  (export "sock_accept" (func $bad3))
  (func (export "fd_read") (param i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (i32.const 8))
  (func $at (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (export "fd_pread" (func $at))
  (export "fd_pwrite" (func $at))
  (export "fd_readdir" (func $at))
  (func $five (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_filestat_get" (func $five))
  (export "path_symlink" (func $five))
  (export "sock_send" (func $five))
  (func $six (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (export "path_readlink" (func $six))
  (export "path_rename" (func $six))
  (export "sock_recv" (func $six))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
)
