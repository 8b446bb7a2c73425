//! Admission: whether a request may have slots.
//!
//! # Locking
//!
//! 1. A task's request holds the lock of its shard.
//! 2. A processor's request holds the locks of all shards, taken in their order: only it depends on
//!    the slots of every task, and only it changes the processors' slots, on which every task's
//!    request depends.
//! 3. No foreign code runs under a lock.

use std::sync::MutexGuard;
use std::time::Duration;

use super::cpus::Cpus;
use super::lock::Lock;
use super::shard::{Shard, Usage};
use super::table::{Item, SHARD_BITS, shard_of};
use crate::{Cpu, Error, MOST_SLOTS, Registers, SlotHolder, SlotRequest, Target, TaskId};

/// The most tasks that the refusal of a processor's request names.
const NAMED: usize = 8;

/// The slots of a number of processors, and their holders. The crate's page has the rules.
///
/// Memory grows with the largest number of items that there ever was, and does not shrink.
#[derive(Debug)]
pub struct Slots {
    registers: Registers,
    cpus: Cpus,
    shards: Box<[Lock<Shard>]>,
}

/// Slots that are held until this is dropped.
#[derive(Debug)]
#[must_use = "the slots are free again when this is dropped"]
pub struct Reservation<'s> {
    slots: &'s Slots,
    request: SlotRequest,
    /// Where a task's item lies in its shard.
    place: usize,
}

impl Slots {
    /// All slots of `cpus` processors, free.
    pub fn new(registers: Registers, cpus: u32) -> Result<Self, Error> {
        let most = registers.slots(crate::SlotKind::Data).max(registers.slots(crate::SlotKind::Execute));
        if most > MOST_SLOTS {
            return Err(Error::TooManyRegisters { slots: most });
        }
        let shards = (0..1 << SHARD_BITS).map(|_| Lock::default()).collect();
        Ok(Self { registers, cpus: Cpus::new(cpus), shards })
    }

    /// Reserves slots.
    ///
    /// # Cost
    ///
    /// For a task one uncontended lock and a pass over the task's own items; if it has items that
    /// are bound to a processor, also over the processors. For a processor all locks. A refusal is
    /// slower: it searches for the holders in the way, for a processor among all tasks.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if too few registers are free; other errors if the request is invalid.
    pub fn reserve(&self, request: SlotRequest) -> Result<Reservation<'_>, Error> {
        let place = match request.target {
            _ if request.weight == 0 => return Err(Error::NoWeight { target: request.target }),
            Target::Cpu(cpu) | Target::TaskOnCpu(_, cpu) if cpu.0 >= self.cpus.len() => {
                return Err(Error::NoCpu { cpu, cpus: self.cpus.len() });
            }
            Target::Cpu(cpu) => self.reserve_for_cpu(request, cpu)?,
            Target::Task(task) => self.reserve_for_task(request, task, None)?,
            Target::TaskOnCpu(task, cpu) => self.reserve_for_task(request, task, Some(cpu))?,
        };
        Ok(Reservation { slots: self, request, place })
    }

    /// Reserves all of these or none. They are reserved one after the other, so meanwhile others
    /// may be refused slots that are given back because a later one does not fit.
    ///
    /// # Errors
    ///
    /// The error of [`reserve`](Self::reserve) for the first request that was refused.
    pub fn reserve_all(&self, requests: &[SlotRequest]) -> Result<Vec<Reservation<'_>>, Error> {
        let mut held = Vec::with_capacity(requests.len());
        for &request in requests {
            // On the way out the reservations so far are given back.
            held.push(self.reserve(request)?);
        }
        Ok(held)
    }

    /// Reserves for a new task the same slots that another task holds at this moment: all or none.
    ///
    /// # Errors
    ///
    /// See [`reserve_all`](Self::reserve_all).
    pub fn inherit(&self, parent: TaskId, child: TaskId) -> Result<Vec<Reservation<'_>>, Error> {
        let requests: Vec<SlotRequest> = self
            .shard(parent)
            .lock()
            .items(parent)
            .map(|item| SlotRequest {
                target: item.cpu.map_or(Target::Task(child), |cpu| Target::TaskOnCpu(child, cpu)),
                kind: item.kind,
                weight: u32::from(item.weight),
            })
            .collect();
        self.reserve_all(&requests)
    }

    /// The number of tasks that hold slots.
    ///
    /// # Cost
    ///
    /// Takes all locks, one after the other.
    pub fn tasks(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().tasks()).sum()
    }

    /// Wall time that threads have waited for locks since the beginning, summed.
    pub fn waited(&self) -> Duration {
        self.shards.iter().map(Lock::waited).sum()
    }

    fn shard(&self, task: TaskId) -> &Lock<Shard> {
        &self.shards[shard_of(task)]
    }

    fn reserve_for_task(&self, request: SlotRequest, task: TaskId, cpu: Option<Cpu>) -> Result<usize, Error> {
        let class = self.registers.class(request.kind);
        let mut shard = self.shard(task).lock();
        let usage = shard.usage(task, class);
        // On the busiest of the processors that the request is for, as this task sees them.
        let used = match cpu {
            Some(cpu) => self.cpus.on(class, cpu) + shard.used_on(task, class, cpu),
            None if usage.bound == 0 => self.cpus.most(class) + usage.anywhere,
            None => self.used_on_each(&shard, task, class).max().unwrap_or(0),
        };
        self.admit(request, used, || {
            let used_here = |here| here == used;
            let first = || self.used_on_each(&shard, task, class).position(used_here);
            let busiest = cpu.or_else(|| first().map(|index| Cpu(index as u32)));
            self.holders_for_task(&shard, task, class, usage, busiest)
        })?;
        // The registers, which are no more than `MOST_SLOTS`, bound the weight.
        let item = Item { cpu, kind: request.kind, class: class as u8, weight: request.weight as u8 };
        Ok(shard.insert(task, item, usage, self.cpus.len()))
    }

    fn reserve_for_cpu(&self, request: SlotRequest, cpu: Cpu) -> Result<usize, Error> {
        let class = self.registers.class(request.kind);
        let all = self.lock_all();
        let own = self.cpus.on(class, cpu);
        let of_tasks = all.iter().map(|shard| shard.most_on(class, cpu)).max().unwrap_or(0);
        self.admit(request, own + of_tasks, || {
            let greatest = all
                .iter()
                .filter(|shard| of_tasks > 0 && shard.most_on(class, cpu) == of_tasks)
                .flat_map(|shard| shard.tasks_with(class, cpu, of_tasks))
                .take(NAMED)
                .map(|task| SlotHolder { target: Target::Task(task), slots: of_tasks });
            let own = (own > 0).then_some(SlotHolder { target: Target::Cpu(cpu), slots: own });
            own.into_iter().chain(greatest).collect()
        })?;
        self.cpus.set(&all, class, cpu, own + request.weight);
        Ok(0)
    }

    /// Refuses a request that does not fit beside `used` slots, and names their `holders`.
    fn admit(
        &self,
        requested: SlotRequest,
        used: u32,
        holders: impl FnOnce() -> Vec<SlotHolder>,
    ) -> Result<(), Error> {
        let limit = self.registers.slots(requested.kind);
        let free = limit.saturating_sub(used);
        if requested.weight <= free {
            return Ok(());
        }
        Err(Error::NoSpace { requested, free, holders: holders() })
    }

    /// Slots in use on each processor, as a task sees them: the processor's own and the task's.
    fn used_on_each(&self, shard: &Shard, task: TaskId, class: usize) -> impl Iterator<Item = u32> {
        let of_task = shard.used_on_each(task, class, self.cpus.len());
        self.cpus.each(class).zip(of_task).map(|(of_cpu, of_task)| of_cpu + of_task)
    }

    /// The holders of slots on the busiest processor, as a task with that usage sees it.
    #[cold]
    fn holders_for_task(
        &self,
        shard: &Shard,
        task: TaskId,
        class: usize,
        usage: Usage,
        busiest: Option<Cpu>,
    ) -> Vec<SlotHolder> {
        let mut holders = vec![SlotHolder { target: Target::Task(task), slots: usage.anywhere }];
        if let Some(cpu) = busiest {
            let slots = shard.used_on(task, class, cpu) - usage.anywhere;
            holders.push(SlotHolder { target: Target::TaskOnCpu(task, cpu), slots });
            holders.push(SlotHolder { target: Target::Cpu(cpu), slots: self.cpus.on(class, cpu) });
        }
        holders.retain(|holder| holder.slots > 0);
        holders
    }

    fn release(&self, request: SlotRequest, place: usize) {
        match request.target {
            Target::Task(task) | Target::TaskOnCpu(task, _) => {
                self.shard(task).lock().remove(task, place, self.cpus.len());
            }
            Target::Cpu(cpu) => {
                let class = self.registers.class(request.kind);
                let all = self.lock_all();
                let held = self.cpus.on(class, cpu);
                debug_assert!(request.weight <= held, "{request} were released, and {held} are held");
                self.cpus.set(&all, class, cpu, held - request.weight);
            }
        }
    }

    fn lock_all(&self) -> Vec<MutexGuard<'_, Shard>> {
        self.shards.iter().map(Lock::lock).collect()
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.slots.release(self.request, self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SlotKind;

    fn slots() -> Slots {
        Slots::new(Registers::X86, 2).unwrap()
    }

    fn request(target: Target) -> SlotRequest {
        SlotRequest::new(target, SlotKind::Data)
    }

    fn refusal(slots: &Slots, request: SlotRequest) -> (u32, Vec<(Target, u32)>) {
        match slots.reserve(request) {
            Err(Error::NoSpace { requested, free, holders }) => {
                assert_eq!(requested, request);
                (free, holders.iter().map(|holder| (holder.target, holder.slots)).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refused_task_learns_the_holders() {
        let slots = slots();
        let (task, bound, cpu) =
            (Target::Task(TaskId(1)), Target::TaskOnCpu(TaskId(1), Cpu(1)), Target::Cpu(Cpu(1)));
        let _held = slots.reserve_all(&[task, task, bound, cpu].map(request)).unwrap();
        let expected = (0, vec![(task, 2), (bound, 1), (cpu, 1)]);
        assert_eq!(refusal(&slots, request(task)), expected);
        assert_eq!(refusal(&slots, request(bound)), expected);
        let elsewhere = Target::TaskOnCpu(TaskId(1), Cpu(0));
        let wide = SlotRequest { weight: 3, ..request(elsewhere) };
        assert_eq!(refusal(&slots, wide), (2, vec![(task, 2)]));
    }

    #[test]
    fn refused_processor_learns_the_greatest_tasks() {
        let slots = slots();
        let (many, few, cpu) = (Target::Task(TaskId(1)), Target::Task(TaskId(2)), Target::Cpu(Cpu(0)));
        let _held = slots.reserve_all(&[many, many, many, few, cpu].map(request)).unwrap();
        assert_eq!(refusal(&slots, request(cpu)), (0, vec![(cpu, 1), (many, 3)]));
    }

    #[test]
    fn all_or_nothing_gives_back() {
        let slots = slots();
        let task = request(Target::Task(TaskId(1)));
        assert!(slots.reserve_all(&[task; 5]).is_err());
        assert_eq!(slots.tasks(), 0);
        assert_eq!(slots.reserve_all(&[task; 4]).unwrap().len(), 4);
    }

    #[test]
    fn child_inherits_all_or_nothing() {
        let slots = slots();
        let (parent, child) = (TaskId(1), TaskId(2));
        let targets = [Target::Task(parent), Target::TaskOnCpu(parent, Cpu(1))];
        let _held = slots.reserve_all(&targets.map(request)).unwrap();
        let inherited = slots.inherit(parent, child).unwrap();
        let mut targets: Vec<_> = inherited.iter().map(|held| held.request.target).collect();
        targets.sort();
        assert_eq!(targets, [Target::Task(child), Target::TaskOnCpu(child, Cpu(1))]);
        drop(inherited);
        let _full = slots.reserve_all(&[request(Target::TaskOnCpu(child, Cpu(1))); 3]).unwrap();
        assert!(slots.inherit(parent, child).is_err());
        assert_eq!(refusal(&slots, SlotRequest { weight: 4, ..request(Target::Task(child)) }).0, 1);
    }

    #[test]
    fn kinds_share_registers_or_do_not() {
        let target = Target::Task(TaskId(1));
        let both = [SlotKind::Data, SlotKind::Execute].map(|kind| SlotRequest::new(target, kind));
        let shared = Slots::new(Registers::Shared(1), 1).unwrap();
        assert!(shared.reserve_all(&both).is_err());
        let separate = Slots::new(Registers::Separate { data: 1, execute: 1 }, 1).unwrap();
        let _held = separate.reserve_all(&both).unwrap();
        assert!(both.iter().all(|&request| separate.reserve(request).is_err()));
    }

    #[test]
    fn senseless_requests_are_refused_by_name() {
        let slots = slots();
        let beyond = request(Target::TaskOnCpu(TaskId(1), Cpu(2)));
        assert!(matches!(slots.reserve(beyond), Err(Error::NoCpu { cpu: Cpu(2), cpus: 2 })));
        let nothing = SlotRequest { weight: 0, ..request(Target::Cpu(Cpu(0))) };
        assert!(
            matches!(slots.reserve(nothing), Err(Error::NoWeight { target }) if target == nothing.target)
        );
        let endless = SlotRequest { weight: u32::MAX, ..request(Target::Task(TaskId(1))) };
        assert_eq!(refusal(&slots, endless), (4, vec![]));
        assert!(matches!(Slots::new(Registers::Shared(17), 1), Err(Error::TooManyRegisters { slots: 17 })));
    }
}
