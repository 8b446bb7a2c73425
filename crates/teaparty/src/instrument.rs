//! Everything that the service uses of dormouse, and the switch that builds it without.
//!
//! Without the cargo feature `dormouse` every name below does nothing and costs nothing: a group is
//! an empty struct, a probe no code, its arguments not evaluated, a static key the constant of its
//! initial state, and no crate of dormouse or `tracing` is compiled. The bench compares it with the
//! service in the command. A service that is not a bench needs no such file: it uses `dormouse`
//! directly.

#[cfg(not(feature = "dormouse"))]
pub(crate) use bare::*;
#[cfg(feature = "dormouse")]
pub(crate) use instrumented::*;

#[cfg(feature = "dormouse")]
mod instrumented {
    use std::{
        pin::Pin,
        str::FromStr as _,
        task::{Context, Poll},
        time::Duration,
    };

    use axum::{extract::Request, handler::Handler};
    use dormouse::{Call, CallKind, TaskBudget};
    use tokio::{runtime::Handle, task::JoinHandle};
    use tracing_subscriber::{filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _};

    pub(crate) use dormouse::tokio::received;
    pub(crate) use dormouse::{Group, probe, static_key, tracing, unlikely};

    static_key! {
        /// Requests use more CPU time than they need, by the percentage of `--tax`: what
        /// `dormouse experiment dormouse-teaparty teaparty.tax` finds.
        static TAX: "teaparty.tax" = false;
    }

    tokio::task_local! {
        /// The CPU budget of the request that the task serves.
        static BUDGET: TaskBudget;
    }

    /// Starts the log and the agent. A service that cannot be looked into still serves.
    pub(crate) fn start(log: bool) {
        start_log(log);
        match dormouse::init() {
            Ok(agent) => {
                eprintln!("dormouse listens on {}", agent.path().display());
                agent.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
            }
            Err(error) => eprintln!("warning: dormouse is not available: {error}"),
        }
    }

    /// Shows the runtime beside the groups.
    pub(crate) fn show(runtime: &Handle) {
        // Without dormouse (`DORMOUSE=off`) nobody looks.
        let _ = dormouse::tokio::runtime("tea", runtime);
    }

    /// Runs a statement of the database, which is an outgoing call of the current group.
    pub(crate) fn statement<T, E>(text: &str, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        Call::begin(CallKind::Sql, text).run(run)
    }

    /// The charges of each request.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Charges {
        /// A request that uses more CPU time leaves a record, if a client traces
        /// `dormouse.over_budget`.
        pub(crate) budget: Duration,
        /// How much more CPU time a request uses while the tax is on.
        pub(crate) tax_percent: u16,
    }

    impl Charges {
        /// Runs each request of a handler in the group `name`, from its extractors to its response.
        pub(crate) fn of<T, S>(
            self,
            name: &'static str,
            handler: impl Handler<T, S, Future: Unpin>,
        ) -> impl Handler<T, S>
        where
            T: 'static,
            S: Clone + Send + Sync + 'static,
        {
            dormouse::axum::handler(Group::new(name), Watched { handler, charges: self })
        }
    }

    /// A handler whose requests have a budget and pay the tax.
    #[derive(Clone, Copy)]
    struct Watched<H> {
        handler: H,
        charges: Charges,
    }

    impl<T, S, H: Handler<T, S, Future: Unpin>> Handler<T, S> for Watched<H> {
        type Future = Watch<H::Future>;

        fn call(self, request: Request, state: S) -> Self::Future {
            let Charges { budget, tax_percent } = self.charges;
            let taxed = unlikely!(TAX);
            let mut counted = TaskBudget::recorded(budget);
            if taxed && counted.used().is_none() {
                counted = TaskBudget::new(budget, |_| ());
            }
            let served = self.handler.call(request, state);
            Watch { served, budget: counted, tax_percent: if taxed { tax_percent } else { 0 } }
        }
    }

    struct Watch<F> {
        served: F,
        budget: TaskBudget,
        tax_percent: u16,
    }

    impl<F: Future + Unpin> Future for Watch<F> {
        type Output = F::Output;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            let Self { served, budget, tax_percent } = &mut *self;
            if budget.used().is_none() {
                return Pin::new(served).poll(cx);
            }
            let response = BUDGET.sync_scope(budget.clone(), || {
                let _counted = budget.enter();
                Pin::new(served).poll(cx)
            });
            if let (Poll::Ready(_), Some(used)) = (&response, budget.used()) {
                burn(used * u32::from(*tax_percent) / 100);
            }
            response
        }
    }

    /// Uses `time` of CPU time of this thread, to within a read of its clock.
    fn burn(time: Duration) {
        let end = dormouse::clock::thread_cpu_ns() + time.as_nanos() as u64;
        while dormouse::clock::thread_cpu_ns() < end {
            std::hint::spin_loop();
        }
    }

    /// Runs `work` on the blocking pool, charged to the group and counted in the budget of the
    /// request that this task serves.
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        // None: the task serves no request.
        let budget = BUDGET.try_with(TaskBudget::clone).ok();
        dormouse::tokio::spawn_blocking(move || {
            let _counted = budget.as_ref().map(TaskBudget::enter);
            work()
        })
    }

    /// A callsite passes two gates: its static key and this filter. The keys sleep until a client
    /// wakes them, and that client wants all messages; so with `log` the filter lets all of ours
    /// through. Without, it lets warnings through. `RUST_LOG` overrides both.
    fn start_log(log: bool) {
        let default = if log { "warn,dormouse_teaparty=trace" } else { "warn" };
        let set = std::env::var("RUST_LOG").ok().filter(|directives| !directives.is_empty());
        let filter = set.and_then(|directives| {
            let parsed = Targets::from_str(&directives);
            parsed.inspect_err(|error| eprintln!("warning: RUST_LOG={directives:?} is ignored: {error}")).ok()
        });
        let filter = filter.unwrap_or_else(|| default.parse().expect("targets and levels"));
        let messages = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        // Fails if the program that embeds this library has a subscriber: then that one is used.
        let _ = tracing_subscriber::registry().with(messages).with(filter).try_init();
    }
}

#[cfg(not(feature = "dormouse"))]
mod bare {
    use std::{
        io,
        thread::{Builder, JoinHandle},
        time::Duration,
    };

    use axum::handler::Handler;
    use tokio::runtime::Handle;

    pub(crate) use tokio::task::spawn_blocking;

    pub(crate) fn start(log: bool) {
        if log {
            eprintln!("warning: --log has no effect: this is the build without dormouse");
        }
    }

    pub(crate) fn show(_: &Handle) {}

    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Charges {
        pub(crate) budget: Duration,
        pub(crate) tax_percent: u16,
    }

    impl Charges {
        pub(crate) fn of<T, S>(self, _: &str, handler: impl Handler<T, S>) -> impl Handler<T, S> {
            let _ = (self.budget, self.tax_percent);
            handler
        }
    }

    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Group {
        name: &'static str,
    }

    impl Group {
        pub(crate) fn new(name: &'static str) -> Self {
            Self { name }
        }

        pub(crate) fn connection(self) -> Self {
            self
        }

        #[expect(clippy::unused_self, reason = "as dormouse has it")]
        pub(crate) fn instrument<F>(self, future: F) -> F {
            future
        }

        pub(crate) fn spawn_thread<T: Send + 'static>(
            self,
            work: impl FnOnce() -> T + Send + 'static,
        ) -> io::Result<JoinHandle<T>> {
            Builder::new().name(self.name.into()).spawn(work)
        }
    }

    pub(crate) fn received<I>(io: I) -> I {
        io
    }

    pub(crate) fn statement<T, E>(_: &str, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        run()
    }

    #[derive(Debug)]
    pub(crate) struct Entered;

    macro_rules! nothing {
        ($($anything:tt)*) => {};
    }

    macro_rules! static_key {
        ($(#[$doc:meta])* $visibility:vis static $key:ident: $name:literal = $on:literal;) => {
            $(#[$doc])* $visibility const $key: bool = $on;
        };
    }

    macro_rules! unlikely {
        ($key:ident) => {
            $key
        };
    }

    pub(crate) use {nothing as probe, static_key, unlikely};

    pub(crate) mod tracing {
        #[derive(Debug)]
        pub(crate) struct Span;

        impl Span {
            #[expect(clippy::unused_self, reason = "as tracing has it")]
            pub(crate) fn entered(self) -> super::Entered {
                super::Entered
            }
        }

        macro_rules! no_span {
            ($($anything:tt)*) => {
                $crate::instrument::tracing::Span
            };
        }

        pub(crate) use {no_span as debug_span, nothing as debug, nothing as info, nothing as trace};
    }
}
