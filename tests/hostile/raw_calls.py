# claim: a dangerous system call, made directly
# expect: error: Contained
import ctypes, os
class Contained(Exception): pass
CALLS = dict(ptrace=101, clone=56, fork=57, vfork=58, execve=59, kill=62, socket=41, shmget=29, semget=64, msgget=68, mq_open=240,
             prctl=157, mount=165, umount=166, pivot_root=155, chroot=161, unshare=272, setns=308, bpf=321, perf_event_open=298,
             userfaultfd=323, io_uring_setup=425, io_uring_enter=426, memfd_create=319, memfd_secret=447, process_vm_readv=310,
             process_vm_writev=311, keyctl=250, add_key=248, init_module=175, finit_module=313, kexec_load=246, reboot=169, iopl=172,
             ioperm=173, modify_ldt=154, personality=135, open_by_handle_at=304, name_to_handle_at=303, fanotify_init=300, seccomp=317,
             clone3=435, pidfd_open=434, pidfd_getfd=438, pidfd_send_signal=424, process_madvise=440, landlock_create_ruleset=444,
             open_tree=428, move_mount=429, fsopen=430, execveat=322, tgkill=234, tkill=200, rt_sigqueueinfo=129, timerfd_create=283,
             eventfd2=290, signalfd4=289, epoll_create1=291, inotify_init1=294, splice=275, tee=276, vmsplice=278, sendfile=40, openat2=437,
             setrlimit=160, setpriority=141, sched_setscheduler=144, swapon=167, acct=163, syslog=103, quotactl=179, sethostname=170,
             clock_settime=227, adjtimex=159, ioctl=16, creat=85, unlink=87, chmod=90, pwrite64=18, msync=26, mincore=27, mlock=149,
             arch_prctl=158, set_robust_list=273, rseq=334, kcmp=312, lookup_dcookie=212, migrate_pages=256, vhangup=153, uselib=134)
def solve(x):
    if os.uname().machine != "x86_64":
        raise Contained
    libc = ctypes.CDLL(None, use_errno=True)
    for name, number in CALLS.items():
        if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:
            return "BREACH by " + name
    raise Contained
