//! The words and pictures of the page: a section for each origin, and for each other workload.

use super::picture::{Curve, Curves, Dots, Look};
use super::scale::{self, Scale};

/// A part of the page.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) id: &'static str,
    /// The workload whose rows it shows.
    pub(super) workload: &'static str,
    pub(super) title: &'static str,
    /// The change that it repeats; empty where there is none.
    pub(super) origin: &'static str,
    pub(super) problem: &'static str,
    /// The same problem in a process.
    pub(super) here: &'static str,
    pub(super) dots: &'static [Dots],
    pub(super) curves: &'static [Curves],
}

/// The rows whose values a section shows.
pub(super) fn names(section: &Section) -> Vec<String> {
    let points = section.dots.iter().flat_map(|dots| dots.lines).flat_map(|line| &line[1..]);
    let points = points.filter_map(|text| scale::name_of(text)).map(str::to_owned);
    let curves = section.curves.iter().flat_map(|curves| {
        let measured = curves.each.iter().filter_map(Curve::row);
        measured.flat_map(|name| curves.at.iter().map(move |at| name.replace('#', &at.to_string())))
    });
    points.chain(curves).collect()
}

/// In the order of the page.
pub(super) const SECTIONS: [Section; 15] = [
    Section {
        id: "breakpoints",
        workload: "breakpoint",
        title: "Breakpoints that threads inherit",
        origin: "Linux, perf/hw_breakpoint: optimize list of per-task breakpoints (2022)",
        problem: "A thread that inherits a breakpoint reserves a debug register, and the kernel first counts \
                  those that the thread has. It kept the breakpoints of all tasks in one list, and walked \
                  that list under one lock, so each thread took longer to make the more of them lived. With \
                  a hash by task, a thread on a machine with 256 processors was made and joined in 108 µs \
                  instead of 123 ms.",
        here: "Dormouse accounts debug registers for threads, async tasks and groups. The list of before the \
               change, the hash, and no accounting at all run here side by side with real threads.",
        dots: &[Dots {
            title: "A thread made and joined",
            scale: Scale::Log,
            marks: ["list of all tasks", "", "hash by task"],
            lines: &[
                ["origin, 256 processors", "123134.79 us", "", "108.42 us"],
                ["here", "thread/list", "", "thread/hash"],
                ["here, without accounting", "", "", "thread/none"],
            ],
        }],
        curves: &[Curves {
            title: "A breakpoint reserved and released beside other tasks",
            over: "tasks",
            at: &[100, 1_000, 10_000, 100_000, 1_000_000],
            each: &[
                Curve { label: "list of all tasks", look: Look::Before, figures: "accounting/list/#" },
                Curve { label: "hash by task", look: Look::After, figures: "accounting/hash/#" },
            ],
        }],
    },
    Section {
        id: "switch",
        workload: "switch",
        title: "Counters at a switch between tasks",
        origin: "Linux, perf_counter: optimize context switch between identical inherited contexts (2009)",
        problem: "The processes that one program has started inherit its counters, and their counts are added \
                  up in the end. At a switch from one to the next the kernel nevertheless read all counters \
                  out and set them up again. It now hands the running set over if both are clones of one \
                  parent: with eight counters a switch takes 3.6 instead of 11.2 µs.",
        here: "Tasks of one thread go round a ring, here with dormouse's events: read out at each switch, or \
               handed over where the tasks are equivalent. Beside them processes do the same under the \
               running kernel, which has the change.",
        dots: &[Dots {
            title: "A switch in a ring of two",
            scale: Scale::Log,
            marks: ["read at each switch", "processes of this kernel", "handed over"],
            lines: &[
                ["origin, no counters", "3.44 us", "", "3.12 us"],
                ["origin, 2 HW", "6.45 us", "", "3.39 us"],
                ["origin, 4H+4S", "11.24 us", "", "3.60 us"],
                ["this kernel, no counters", "", "mean kernel/none/2", ""],
                ["this kernel, 8 soft", "", "mean kernel/8/2", ""],
                ["tasks, no events", "mean ring/none/2/eager", "", "mean ring/none/2/swap"],
                ["tasks, 2 soft", "mean ring/2/2/eager", "", "mean ring/2/2/swap"],
                ["tasks, 8 soft", "mean ring/8/2/eager", "", "mean ring/8/2/swap"],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "maps",
        workload: "maps",
        title: "Where an address lies",
        origin: "Linux, mm: per-thread vma caching (2014)",
        problem: "Each page fault asks which mapping an address lies in, and the tree of all mappings answers \
                  slowly. One remembered answer for a whole process helps little if its threads work in \
                  different places: in ebizzy it was right once in a hundred times. Four remembered answers a \
                  thread, made stale all at once by a number, are right in 73 to 99.97 of a hundred.",
        here: "Page faults of such programs were recorded and are replayed here, through both schemes of the \
               origin and through dormouse's range map.",
        dots: &[Dots {
            title: "Look-ups that the cache answered, %",
            scale: Scale::Linear,
            marks: ["one answer a process", "four a thread (vmacache)", "dormouse"],
            lines: &[
                ["origin, system bootup", "50.61 %", "73.45 %", ""],
                ["here, boot", "hit-rate/boot/single", "hit-rate/boot/vmacache", "hit-rate/boot/dormouse"],
                ["origin, kernel build", "75.28 %", "88.09 %", ""],
                [
                    "here, build",
                    "hit-rate/build/single",
                    "hit-rate/build/vmacache",
                    "hit-rate/build/dormouse",
                ],
                ["origin, data mining", "70.66 %", "91.15 %", ""],
                [
                    "here, mining",
                    "hit-rate/mining/single",
                    "hit-rate/mining/vmacache",
                    "hit-rate/mining/dormouse",
                ],
                ["origin, ebizzy", "1.06 %", "99.97 %", ""],
                [
                    "here, ebizzy",
                    "hit-rate/ebizzy/single",
                    "hit-rate/ebizzy/vmacache",
                    "hit-rate/ebizzy/dormouse",
                ],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "keys",
        workload: "keys",
        title: "Code that is rewritten while it runs",
        origin: "Linux, jump_label: batch updates if the architecture supports it (2019)",
        problem: "A static key is a branch without a test: the kernel rewrites the instruction wherever the \
                  key stands. It rewrote one place after the other, and interrupted every processor three \
                  times for each, 168 times for a key with 56 places. A batch interrupts them three times for \
                  all places together, and the update takes 1.4 instead of 57 ms.",
        here: "Here a process rewrites its own code while another thread runs it: by the kernel's protocol \
               (int3), and by a single byte (flip), which needs one interruption and no trap.",
        dots: &[
            Dots {
                title: "56 places updated",
                scale: Scale::Log,
                marks: ["one by one", "", "in a batch"],
                lines: &[
                    ["origin, by int3", "57 ms", "", "1.4 ms"],
                    ["here, by int3", "update/one-by-one-int3", "", "update/batch-int3"],
                    ["here, by flip", "update/one-by-one-flip", "", "update/batch-flip"],
                    ["by int3, under a compile", "update/one-by-one-int3/busy", "", "update/batch-int3/busy"],
                    ["by flip, under a compile", "update/one-by-one-flip/busy", "", "update/batch-flip/busy"],
                ],
            },
            Dots {
                title: "Interrupts between processors for an update",
                scale: Scale::Log,
                marks: ["one by one", "", "in a batch"],
                lines: &[
                    ["origin, by int3", "168 IPIs", "", "3 IPIs"],
                    ["here, by int3", "ipis/one-by-one-int3/cal", "", "ipis/batch-int3/cal"],
                    ["here, by flip", "ipis/one-by-one-flip/cal", "", "ipis/batch-flip/cal"],
                ],
            },
        ],
        curves: &[],
    },
    Section {
        id: "pound",
        workload: "pound",
        title: "CPU time of many threads",
        origin: "Linux, sched/cputime: mitigate performance regression in times()/clock_gettime() (2016)",
        problem: "The CPU time of a process is the sum over its threads, some of which run on other \
                  processors at the moment of the question. A correction had each call bring the running ones \
                  up to date, and 5,000,000 calls from 48 threads took 6.05 instead of 3.02 s. Fetching that memory \
                  ahead of its use got up to 16 % back.",
        here: "The origin's programs run here: as they are, and with dormouse's time of a group, which sums \
               what the threads have published and says how far it may be behind.",
        dots: &[],
        curves: &[Curves {
            title: "5,000,000 calls by all threads together",
            over: "threads",
            at: &[2, 5, 8, 12, 21, 30, 48, 79, 110, 128],
            each: &[
                Curve {
                    label: "origin, Linux 4.7-rc7",
                    look: Look::OriginBefore,
                    figures: "3.48 3.33 3.37 3.32 4.01 3.63 3.71 3.75 3.81 3.88 s",
                },
                Curve {
                    label: "origin, with its change",
                    look: Look::OriginAfter,
                    figures: "3.06 3.25 3.26 3.37 3.90 3.36 3.11 3.16 3.25 3.31 s",
                },
                Curve {
                    label: "clock_gettime, this kernel",
                    look: Look::Before,
                    figures: "mean pound/clock_gettime/#",
                },
                Curve {
                    label: "time of a group, dormouse",
                    look: Look::After,
                    figures: "mean pound/group-stale/#",
                },
            ],
        }],
    },
    Section {
        id: "profile",
        workload: "profile",
        title: "Profiles",
        origin: "",
        problem: "A profile interrupts threads at regular times and notes where they are. Each thread pays for \
                  the handler of that signal. Turning stacks into names is left to a thread of its own.",
        here: "The peers are the two ways of the crate pprof: by frame pointers, and by tables of exceptions.",
        dots: &[Dots {
            title: "A sample, in the thread that is sampled",
            scale: Scale::Log,
            marks: ["", "pprof", "dormouse"],
            lines: &[
                ["by frame pointers", "", "handler/pprof-frame-pointer", "handler/dormouse"],
                ["by tables", "", "handler/pprof-tables", "handler/dormouse-unwind"],
                ["aggregation, in another thread", "", "", "sample/drain"],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "waits",
        workload: "waits",
        title: "Waits",
        origin: "",
        problem: "A request that is slow mostly waits. The time of each wait belongs to the place in the code \
                  where the task took its waker. A service pays for this at each poll, and next to nothing \
                  while nobody asks.",
        here: "Tasks that do nothing but wake each other show the price. The peers are tokio-metrics and \
               await-tree.",
        dots: &[Dots {
            title: "A poll of a task that is woken by another and wakes it in turn",
            scale: Scale::Linear,
            marks: ["bare", "others", "dormouse"],
            lines: &[
                ["bare", "wake/bare", "", ""],
                ["nobody asks", "", "", "wake/asleep"],
                ["times are taken", "", "", "wake/times"],
                ["CPU time of its group is counted", "", "", "wake/account"],
                ["the same, and times are taken", "", "", "wake/account-times"],
                ["tokio-metrics", "", "wake/tokio-metrics", ""],
                ["await-tree", "", "wake/await-tree", ""],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "watch",
        workload: "breakpoint",
        title: "Watches",
        origin: "",
        problem: "A debug register tells who writes a variable, without a debugger that stops the process. A \
                  watch is armed on every thread that there is, and on those to come. The thread that writes \
                  pays for a hit, with a signal to itself.",
        here: "The peers are the kernel's events without us, gdb and perf stat.",
        dots: &[
            Dots {
                title: "A write to a watched variable",
                scale: Scale::Log,
                marks: ["", "others", "dormouse"],
                lines: &[
                    ["counted by the kernel", "", "hit/count", ""],
                    ["recorded by the kernel", "", "hit/ring", ""],
                    ["a handler that does nothing", "", "hit/empty-handler", ""],
                    ["value, task, time and stack", "", "", "hit/signal"],
                    ["the same, filtered out", "", "", "hit/signal-filtered"],
                    ["perf stat", "", "hit/perf-stat", ""],
                    ["gdb", "", "hit/gdb", ""],
                ],
            },
            Dots {
                title: "A watch armed on the threads of a process",
                scale: Scale::Log,
                marks: ["", "bare events of the kernel", "dormouse"],
                lines: &[
                    ["16 threads", "", "kernel/arm/16-threads", "arm/16-threads"],
                    ["256 threads", "", "kernel/arm/256-threads", "arm/256-threads"],
                    ["1,000 threads", "", "kernel/arm/1000-threads", "arm/1000-threads"],
                ],
            },
        ],
        curves: &[],
    },
    Section {
        id: "record",
        workload: "record",
        title: "Probes and the flight recorder",
        origin: "",
        problem: "A probe is a named place with fields, and sleeps until somebody looks. Awake, it leaves a \
                  record in memory of its thread. The flight recorder keeps the last of them.",
        here: "",
        dots: &[Dots {
            title: "A probe with one number",
            scale: Scale::Linear,
            marks: ["", "a bare copy", "dormouse"],
            lines: &[
                ["asleep", "", "", "probe/asleep"],
                ["awake, read by a trace", "", "", "probe/traced"],
                ["awake, read by nobody", "", "", "probe/unread"],
                ["awake, with the recorder on", "", "", "probe/recorded"],
                ["48 bytes copied", "", "floor/copy", ""],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "metrics",
        workload: "metrics",
        title: "Metrics",
        origin: "",
        problem: "A scrape asks a service for all its groups at once. The service reads its ledgers, and \
                  dormouse serve writes them down in a format that Prometheus or OpenTelemetry reads. The \
                  requests of the service should not notice.",
        here: "",
        dots: &[Dots {
            title: "A thousand groups",
            scale: Scale::Log,
            marks: ["", "", "dormouse"],
            lines: &[
                ["read", "", "", "read/groups"],
                ["written as text", "", "", "encode/text"],
                ["written as OpenMetrics", "", "", "encode/openmetrics"],
                ["written as protocol buffers", "", "", "encode/protobuf"],
                ["written for OTLP", "", "", "encode/otlp"],
                ["a scrape in all, packed", "", "", "scrape/groups"],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "poll",
        workload: "poll",
        title: "Polls that are charged to a group",
        origin: "",
        problem: "Each poll of a future is charged to its group. That takes two readings of a clock, and the \
                  cheapest clock decides the price.",
        here: "The peers are tokio-metrics, which measures other things, and two calls of clock_gettime.",
        dots: &[Dots {
            title: "A poll of a task that wakes itself",
            scale: Scale::Linear,
            marks: ["bare", "others", "dormouse"],
            lines: &[
                ["bare", "poll/bare", "", ""],
                ["charged to a group", "", "", "poll/dormouse"],
                ["tokio-metrics", "", "poll/tokio-metrics", ""],
                ["clock_gettime", "", "poll/clock_gettime", ""],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "clock",
        workload: "clock",
        title: "CPU time of a thread",
        origin: "",
        problem: "The kernel tells a thread its CPU time by a system call. Dormouse reads the time stamp \
                  counter instead, and asks the kernel anew where the thread may have lost its processor.",
        here: "The tiers differ in how they notice that.",
        dots: &[Dots {
            title: "A reading",
            scale: Scale::Log,
            marks: ["", "others", "dormouse"],
            lines: &[
                ["time stamp counter alone", "", "read/rdtsc", ""],
                ["tier rseq", "", "", "read/thread-rseq"],
                ["tier page", "", "", "read/thread-page"],
                ["tier gap", "", "", "read/thread-gap"],
                ["tier syscall", "", "", "read/thread-syscall"],
                ["clock_gettime", "", "read/clock_gettime-thread", ""],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "alloc",
        workload: "alloc",
        title: "Allocations",
        origin: "",
        problem: "A wrapper around the allocator counts what each group allocates. It sleeps like everything \
                  else.",
        here: "",
        dots: &[Dots {
            title: "64 bytes allocated and freed",
            scale: Scale::Linear,
            marks: ["", "the system's", "dormouse"],
            lines: &[
                ["the allocator itself", "", "alloc/system", ""],
                ["wrapped, asleep", "", "", "alloc/dormouse-asleep"],
                ["wrapped, counting", "", "", "alloc/dormouse"],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "groups",
        workload: "groups",
        title: "Groups",
        origin: "",
        problem: "A request finds its group by name, and may be the first of it. A service should not wait \
                  for that while others look at counts.",
        here: "",
        dots: &[Dots {
            title: "A group found by its name, alone and while stat looks",
            scale: Scale::Log,
            marks: ["median", "99 of 100", "longest"],
            lines: &[
                ["known", "group-new/known/idle/p50", "group-new/known/idle/p99", "group-new/known/idle/max"],
                [
                    "known, stat",
                    "group-new/known/stat/p50",
                    "group-new/known/stat/p99",
                    "group-new/known/stat/max",
                ],
                ["new", "group-new/new/idle/p50", "group-new/new/idle/p99", "group-new/new/idle/max"],
                ["new, stat", "group-new/new/stat/p50", "group-new/new/stat/p99", "group-new/new/stat/max"],
            ],
        }],
        curves: &[],
    },
    Section {
        id: "teaparty",
        workload: "teaparty",
        title: "A whole service",
        origin: "",
        problem: "Small prices may add up. So a whole service is built with dormouse and without, and loaded \
                  in turn. All its keys are off, and a client is connected.",
        here: "",
        dots: &[Dots {
            title: "CPU time of a request",
            scale: Scale::Linear,
            marks: ["without dormouse", "", "with it, asleep"],
            lines: &[
                ["all routes", "teaparty-cpu/without", "", "teaparty-cpu/with"],
                ["the cheapest route", "teaparty-menu-cpu/without", "", "teaparty-menu-cpu/with"],
            ],
        }],
        curves: &[],
    },
];

/// Abilities that a machine may have, and the row that is not measured without it: name, workload,
/// row.
pub(super) const NEEDS: [[&str; 3]; 12] = [
    ["Hardware counters (cycles)", "switch", "kernel/2hw/2"],
    ["Software counters of the kernel", "switch", "kernel/8/2"],
    ["Breakpoints of the kernel", "breakpoint", "kernel/thread/1"],
    ["Four breakpoints at once", "breakpoint", "kernel/thread/4"],
    ["Watches with a report of each hit", "breakpoint", "hit/signal"],
    ["Thread clock, tier rseq", "clock", "read/thread-rseq"],
    ["Thread clock, tier page", "clock", "read/thread-page"],
    ["Counts of interrupts", "keys", "ipis/batch-flip/cal"],
    ["Frame pointers in this program", "waits", "place/taken"],
    ["gdb", "breakpoint", "hit/gdb"],
    ["perf", "breakpoint", "hit/perf-stat"],
    ["Sources and cargo, to build the service", "teaparty", "teaparty/with"],
];
