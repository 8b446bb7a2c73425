//! Profiles for pages: of a service, and of what is as large or as hostile as it gets.

use std::collections::HashMap;

use dormouse_profile::{
    MappedRange, Node, Profile, ProfileCoverage, ProfileGroup, ProfileKind, Sample, SourceFrame, Symbols,
    Thread, Values,
};

/// Builds a profile of named stacks.
pub(crate) struct Maker {
    pub profile: Profile,
    pub symbols: Symbols,
    address: HashMap<String, u64>,
    node: HashMap<(u32, u64), u32>,
}

impl Maker {
    pub(crate) fn new(kind: ProfileKind) -> Self {
        let mapping = |start, path: &str| MappedRange {
            start,
            end: start + 0x1000_0000,
            path: path.to_owned(),
            ..MappedRange::default()
        };
        let profile = Profile {
            kind,
            unix_ns: 1_795_000_000_000_000_000,
            duration_ns: 10_000_000_000,
            pid: 4711,
            program: "/srv/bin/teaparty".to_owned(),
            groups: vec![ProfileGroup::default()],
            mappings: vec![
                mapping(0x1000_0000, "/srv/bin/teaparty"),
                mapping(0x7000_0000, "/usr/lib/x86_64-linux-gnu/libc.so.6"),
            ],
            ..Profile::default()
        };
        Self { profile, symbols: Symbols::default(), address: HashMap::new(), node: HashMap::new() }
    }

    pub(crate) fn group(&mut self, name: &str) -> u32 {
        let known = self.profile.groups.iter().position(|group| group.name == name);
        let index = known.unwrap_or_else(|| {
            self.profile.groups.push(ProfileGroup { name: name.to_owned(), ..ProfileGroup::default() });
            self.profile.groups.len() - 1
        });
        u32::try_from(index).unwrap()
    }

    pub(crate) fn thread(&mut self, name: &str) -> u32 {
        let known = self.profile.threads.iter().position(|thread| thread.name == name);
        let index = known.unwrap_or_else(|| {
            let tid = 4711 + u32::try_from(self.profile.threads.len()).unwrap();
            self.profile.threads.push(Thread { tid, name: name.to_owned() });
            self.profile.threads.len() - 1
        });
        u32::try_from(index).unwrap()
    }

    fn address(&mut self, name: &str) -> u64 {
        if let Some(&address) = self.address.get(name) {
            return address;
        }
        let base = if name.contains("::") { 0x1000_0000 } else { 0x7000_0000 };
        let address = base + 0x1000 + 64 * u64::try_from(self.address.len()).unwrap();
        self.address.insert(name.to_owned(), address);
        let line = u32::try_from(address % 400).unwrap();
        let file = match name.split_once("::") {
            Some((_, rest)) => format!("src/{}.rs", rest.split("::").next().unwrap()),
            None => String::new(),
        };
        let frame = SourceFrame { function: name.to_owned(), file, line, inlined: false };
        self.symbols.insert(address, vec![frame]);
        address
    }

    /// Adds a sample of the stack, the outermost function first.
    pub(crate) fn add(&mut self, group: u32, thread: u32, stack: &[&str], values: Values) {
        let mut at = 0;
        for name in stack {
            let address = self.address(name);
            let stacks = &mut self.profile.stacks;
            at = *self.node.entry((at, address)).or_insert_with(|| {
                stacks.push(Node { parent: at, address });
                u32::try_from(stacks.len()).unwrap()
            });
        }
        self.profile.samples.push(Sample { group, thread, stack: at, values });
    }

    pub(crate) fn done(mut self) -> (Profile, Symbols) {
        let main = |of: &mut dyn Iterator<Item = &Sample>| of.map(|sample| sample.values[1]).sum();
        let samples = &self.profile.samples;
        let count = samples.iter().map(|sample| sample.values[0]).sum();
        self.profile.coverage = ProfileCoverage {
            total: main(&mut samples.iter()),
            in_groups: main(&mut samples.iter().filter(|sample| sample.group > 0)),
            threads: 6,
            armed: 6,
            samples: count,
            ended: count * 998 / 1000,
            notes: vec!["Work of kernel threads is not in a profile of a process.".to_owned()],
            ..ProfileCoverage::default()
        };
        (self.profile, self.symbols)
    }
}

/// Numbers that look random, the same in every run.
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

const RUNTIME: [&str; 9] = [
    "clone3",
    "std::sys::thread::unix::Thread::new::thread_start",
    "<alloc::boxed::Box<dyn core::ops::function::FnOnce()> as core::ops::function::FnOnce<()>>::call_once",
    "tokio::runtime::blocking::pool::Inner::run",
    "tokio::runtime::scheduler::multi_thread::worker::run",
    "tokio::runtime::scheduler::multi_thread::worker::Context::run_task",
    "tokio::runtime::task::harness::Harness<T, S>::poll",
    "<hyper_util::server::conn::auto::UpgradeableConnection<I, S, E> as core::future::future::Future>::poll",
    "hyper::proto::h1::dispatch::Dispatcher<D, Bs, I, T>::poll_catch",
];

const HANDLER: [&str; 3] = [
    "<tower::util::oneshot::Oneshot<S, Req> as core::future::future::Future>::poll",
    "<axum::routing::route::RouteFuture<E> as core::future::future::Future>::poll",
    "<dormouse::tower::GroupFuture<F> as core::future::future::Future>::poll",
];

/// Functions and those that they call, each with how often.
const CALLS: [(&str, &[(&str, u64)]); 19] = [
    (
        "teaparty::routes::blend::{{closure}}",
        &[("teaparty::blend::Recipe::taste", 60), ("serde_json::to_vec", 25)],
    ),
    (
        "teaparty::blend::Recipe::taste",
        &[("teaparty::blend::mix", 55), ("teaparty::leaves::grind", 30), ("", 15)],
    ),
    ("teaparty::blend::mix", &[("<f64 as core::iter::traits::accum::Sum>::sum", 35), ("", 65)]),
    ("teaparty::leaves::grind", &[("__memmove_avx_unaligned_erms", 50), ("malloc", 20), ("", 30)]),
    ("malloc", &[("_int_malloc", 70), ("", 30)]),
    ("_int_malloc", &[("sysmalloc", 10), ("", 90)]),
    ("serde_json::to_vec", &[("serde_core::ser::Serializer::collect_seq", 90), ("malloc", 10)]),
    (
        "serde_core::ser::Serializer::collect_seq",
        &[("serde_json::ser::format_escaped_str", 60), ("itoa::Buffer::format", 20), ("", 20)],
    ),
    (
        "serde_json::ser::format_escaped_str",
        &[
            (
                "<alloc::vec::Vec<T, A> as alloc::vec::spec_extend::SpecExtend<&T, core::slice::iter::Iter<T>>>::spec_extend",
                50,
            ),
            ("", 50),
        ],
    ),
    (
        "teaparty::routes::orders::{{closure}}",
        &[("teaparty::store::Orders::recent", 80), ("serde_json::to_vec", 20)],
    ),
    (
        "teaparty::store::Orders::recent",
        &[("redb::tree_store::btree::Btree<K, V>::range", 70), ("teaparty::store::Order::decode", 30)],
    ),
    (
        "redb::tree_store::btree::Btree<K, V>::range",
        &[
            ("redb::tree_store::btree_base::BranchAccessor<T>::child_for_key", 60),
            ("redb::tree_store::page_store::cached_file::PagedCachedFile::read", 40),
        ],
    ),
    (
        "redb::tree_store::btree_base::BranchAccessor<T>::child_for_key",
        &[("__memcmp_avx2_movbe", 60), ("", 40)],
    ),
    (
        "redb::tree_store::page_store::cached_file::PagedCachedFile::read",
        &[("pread64", 60), ("__memmove_avx_unaligned_erms", 40)],
    ),
    ("teaparty::store::Order::decode", &[("malloc", 40), ("core::str::converts::from_utf8", 30), ("", 30)]),
    ("teaparty::routes::brew::{{closure}}", &[("teaparty::pot::Pot::heat", 100)]),
    (
        "teaparty::pot::Pot::heat",
        &[("teaparty::pot::Pot::heat", 45), ("sha2::sha256::compress256", 40), ("", 15)],
    ),
    (
        "hyper::proto::h1::conn::Conn<I, B, T>::poll_flush",
        &[("<tokio::net::tcp::stream::TcpStream as tokio::io::async_write::AsyncWrite>::poll_write", 100)],
    ),
    (
        "<tokio::net::tcp::stream::TcpStream as tokio::io::async_write::AsyncWrite>::poll_write",
        &[("__send", 90), ("", 10)],
    ),
];

/// A service with three routes; `more` is what each route did, in percent of the usual.
pub(crate) fn service(kind: ProfileKind, seed: u64, more: [u64; 3]) -> (Profile, Symbols) {
    let mut maker = Maker::new(kind);
    let mut dice = Dice(seed);
    let calls: HashMap<_, _> = CALLS.into_iter().collect();
    let routes = [
        ("GET /blend", "blend", 40 * more[0]),
        ("GET /orders", "orders", 25 * more[1]),
        ("POST /brew", "brew", 14 * more[2]),
    ];
    for count in 0..4000 {
        let worker = ["tokio-rt-worker", "tokio-rt-worker", "blocking-1", "main"]
            [usize::try_from(dice.below(4)).unwrap()];
        let thread = maker.thread(worker);
        let mut dealt = dice.below(routes.iter().map(|route| route.2).sum::<u64>() + 2100);
        let found = routes.iter().find(|route| match dealt.checked_sub(route.2) {
            Some(rest) => {
                dealt = rest;
                false
            }
            None => true,
        });
        let mut stack = RUNTIME.to_vec();
        let first;
        let group = if let Some((name, function, _)) = found {
            stack.extend(HANDLER);
            first = format!("teaparty::routes::{function}::{{{{closure}}}}");
            stack.push(calls.get_key_value(&*first).unwrap().0);
            maker.group(name)
        } else {
            stack.push(
                ["hyper::proto::h1::conn::Conn<I, B, T>::poll_flush", "httparse::Request::parse"]
                    [usize::from(count % 3 == 0)],
            );
            0
        };
        while let Some(next) = calls.get(stack.last().unwrap()) {
            let mut dealt = dice.below(next.iter().map(|(_, weight)| weight).sum());
            let chosen = next.iter().find(|(_, weight)| match dealt.checked_sub(*weight) {
                Some(rest) => {
                    dealt = rest;
                    false
                }
                None => true,
            });
            match chosen {
                Some((name, _)) if !name.is_empty() && stack.len() < 60 => stack.push(name),
                _ => break,
            }
        }
        let size = 64 + dice.below(8000);
        let values = match kind {
            ProfileKind::Alloc => {
                let live = u64::from(size.is_multiple_of(3));
                [1, size, live, live * size]
            }
            _ => [1, 9_000_000 + dice.below(2_000_000), 0, 0],
        };
        maker.add(group, thread, &stack, values);
    }
    maker.done()
}

/// A tree of about `frames` frames, as wide and deep as large services are.
pub(crate) fn large(frames: usize) -> (Profile, Symbols) {
    let mut maker = Maker::new(ProfileKind::Cpu);
    let mut dice = Dice(7);
    let name = |number: u64| {
        format!("crate_{}::module_{}::Type<T, U>::function_{number}", number % 60, number % 400)
    };
    let names: Vec<String> = (0..8000).map(name).collect();
    let mut stack: Vec<usize> = Vec::new();
    while maker.profile.stacks.len() < frames {
        stack.truncate(usize::try_from(dice.below(1 + u64::try_from(stack.len()).unwrap())).unwrap());
        let depth = 20 + dice.below(60);
        while u64::try_from(stack.len()).unwrap() < depth {
            // Few functions call many others.
            let wide = if dice.below(8) == 0 { 8000 } else { 40 };
            stack.push(usize::try_from(dice.below(wide)).unwrap());
        }
        let named: Vec<_> = stack.iter().map(|&index| &*names[index]).collect();
        let group = maker.group(&format!("GET /route/{}", dice.below(200)));
        let thread = maker.thread(&format!("worker-{}", dice.below(8)));
        maker.add(group, thread, &named, [1, 10_000_000, 0, 0]);
    }
    maker.done()
}
