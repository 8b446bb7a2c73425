//! Admission: who may have a slot.
//!
//! # Locking
//!
//! A task's request holds the lock of its shard. A processor's request holds those of all shards, taken
//! in their order: it alone depends on what every task uses, and it alone changes what every task's
//! request depends on. Nothing is called from under a lock.

use crate::cpus::Cpus;
use crate::lock::Lock;
use crate::shard::{Shard, Usage};
use crate::table::{Item, SHARD_BITS, shard_of};
use crate::{Cpu, Error, Holder, MOST_SLOTS, Registers, Request, Target, Task, Waits};

/// As many tasks are named when they are in the way of a processor's request.
const NAMED: usize = 8;

/// The slots of a number of processors, and who holds them. See the crate's page for the rules.
///
/// Memory grows with the most items that there ever were, and does not shrink.
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
    request: Request,
    /// Where a task's item lies in its shard.
    place: usize,
}

impl Slots {
    /// All slots of `cpus` processors, free.
    pub fn new(registers: Registers, cpus: u32) -> Result<Self, Error> {
        let most = registers.slots(crate::Kind::Data).max(registers.slots(crate::Kind::Execute));
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
    /// For a task one uncontended lock and the task's own items; with items that are bound to a
    /// processor, the number of processors besides. For a processor all locks. A refusal is slower: it
    /// finds out who is in the way, for a processor by looking through the tasks.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when too few registers are free; others when the request makes no sense.
    pub fn reserve(&self, request: Request) -> Result<Reservation<'_>, Error> {
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

    /// Reserves all of these or nothing. They are taken one after the other, so others may be refused
    /// for the sake of slots that are given back when a later one does not fit.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve), of the first request that was refused.
    pub fn reserve_all(&self, requests: &[Request]) -> Result<Vec<Reservation<'_>>, Error> {
        let mut held = Vec::with_capacity(requests.len());
        for &request in requests {
            // What is held so far is given back on the way out.
            held.push(self.reserve(request)?);
        }
        Ok(held)
    }

    /// Reserves for a new task what another holds at this moment: all of it or nothing.
    ///
    /// # Errors
    ///
    /// As [`reserve_all`](Self::reserve_all).
    pub fn inherit(&self, parent: Task, child: Task) -> Result<Vec<Reservation<'_>>, Error> {
        let requests: Vec<Request> = self
            .shard(parent)
            .lock()
            .items(parent)
            .map(|item| Request {
                target: item.cpu.map_or(Target::Task(child), |cpu| Target::TaskOnCpu(child, cpu)),
                kind: item.kind,
                weight: u32::from(item.weight),
            })
            .collect();
        self.reserve_all(&requests)
    }

    /// The registers of a processor.
    pub fn registers(&self) -> Registers {
        self.registers
    }

    /// How many tasks hold slots.
    ///
    /// # Cost
    ///
    /// All locks, one after the other.
    pub fn tasks(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().tasks()).sum()
    }

    /// How long locks were waited for since the beginning.
    pub fn waits(&self) -> Waits {
        self.shards.iter().map(Lock::waits).fold(Waits::default(), |sum, waits| Waits {
            times: sum.times + waits.times,
            total: sum.total + waits.total,
        })
    }

    fn shard(&self, task: Task) -> &Lock<Shard> {
        &self.shards[shard_of(task)]
    }

    fn reserve_for_task(&self, request: Request, task: Task, cpu: Option<Cpu>) -> Result<usize, Error> {
        let class = self.registers.class(request.kind);
        let limit = self.registers.slots(request.kind);
        let mut shard = self.shard(task).lock();
        let usage = shard.usage(task, class);
        let used = self.used_by_task(&shard, task, class, cpu, usage);
        match request.weight.checked_add(used) {
            Some(sum) if sum <= limit => {
                // No more than `limit`, which is no more than `MOST_SLOTS`.
                let item = Item { cpu, kind: request.kind, class: class as u8, weight: request.weight as u8 };
                Ok(shard.insert(task, item, usage, self.cpus.len()))
            }
            _ => Err(Error::NoSpace {
                requested: request,
                free: limit.saturating_sub(used),
                holders: self.in_the_way_of_task(&shard, task, class, cpu, used),
            }),
        }
    }

    /// Slots in use on the busiest of the processors that a task's request is for, as that task sees them.
    fn used_by_task(&self, shard: &Shard, task: Task, class: usize, cpu: Option<Cpu>, usage: Usage) -> u32 {
        match cpu {
            Some(cpu) => self.cpus.on(class, cpu) + shard.used_on(task, class, cpu),
            None if usage.bound == 0 => self.cpus.most(class) + usage.anywhere,
            None => self.used_on_each(shard, task, class).max().unwrap_or(0),
        }
    }

    fn used_on_each(&self, shard: &Shard, task: Task, class: usize) -> impl Iterator<Item = u32> {
        let of_task = shard.used_on_each(task, class, self.cpus.len());
        self.cpus.each(class).zip(of_task).map(|(of_cpu, of_task)| of_cpu + of_task)
    }

    /// Who holds slots on the busiest processor, `used` in all.
    #[cold]
    fn in_the_way_of_task(
        &self,
        shard: &Shard,
        task: Task,
        class: usize,
        cpu: Option<Cpu>,
        used: u32,
    ) -> Vec<Holder> {
        let busiest = cpu.or_else(|| {
            let index = self.used_on_each(shard, task, class).position(|here| here == used)?;
            Some(Cpu(index as u32))
        });
        let bound = busiest.map_or(0, |cpu| shard.used_on(task, class, cpu));
        let anywhere = shard.usage(task, class).anywhere;
        let mut holders = vec![Holder { target: Target::Task(task), slots: anywhere }];
        if let Some(cpu) = busiest {
            let slots = bound.saturating_sub(anywhere);
            holders.push(Holder { target: Target::TaskOnCpu(task, cpu), slots });
            holders.push(Holder { target: Target::Cpu(cpu), slots: self.cpus.on(class, cpu) });
        }
        holders.retain(|holder| holder.slots > 0);
        holders
    }

    fn reserve_for_cpu(&self, request: Request, cpu: Cpu) -> Result<usize, Error> {
        let class = self.registers.class(request.kind);
        let limit = self.registers.slots(request.kind);
        let all: Vec<_> = self.shards.iter().map(Lock::lock).collect();
        let own = self.cpus.on(class, cpu);
        let of_tasks = all.iter().map(|shard| shard.most_on(class, cpu)).max().unwrap_or(0);
        let used = own + of_tasks;
        match request.weight.checked_add(used) {
            Some(sum) if sum <= limit => {
                self.cpus.set(&all, class, cpu, own + request.weight);
                Ok(0)
            }
            _ => {
                let greatest = all
                    .iter()
                    .filter(|shard| of_tasks > 0 && shard.most_on(class, cpu) == of_tasks)
                    .flat_map(|shard| shard.tasks_with(class, cpu, of_tasks))
                    .take(NAMED)
                    .map(|task| Holder { target: Target::Task(task), slots: of_tasks });
                let own = Some(Holder { target: Target::Cpu(cpu), slots: own }).filter(|own| own.slots > 0);
                let holders = own.into_iter().chain(greatest).collect();
                Err(Error::NoSpace { requested: request, free: limit.saturating_sub(used), holders })
            }
        }
    }

    fn release(&self, request: Request, place: usize) {
        match request.target {
            Target::Task(task) | Target::TaskOnCpu(task, _) => {
                self.shard(task).lock().remove(task, place, self.cpus.len());
            }
            Target::Cpu(cpu) => {
                let class = self.registers.class(request.kind);
                // One store would do for the count, but the histogram has two steps, and between them a
                // task could be let in that does not fit.
                let all: Vec<_> = self.shards.iter().map(Lock::lock).collect();
                let left = self.cpus.on(class, cpu).saturating_sub(request.weight);
                self.cpus.set(&all, class, cpu, left);
            }
        }
    }
}

impl Reservation<'_> {
    /// What is held.
    pub fn request(&self) -> Request {
        self.request
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
    use crate::Kind;

    fn slots() -> Slots {
        Slots::new(Registers::X86, 2).unwrap()
    }

    fn request(target: Target) -> Request {
        Request::new(target, Kind::Data)
    }

    fn refusal(slots: &Slots, request: Request) -> (u32, Vec<(Target, u32)>) {
        match slots.reserve(request) {
            Err(Error::NoSpace { requested, free, holders }) => {
                assert_eq!(requested, request);
                (free, holders.iter().map(|holder| (holder.target, holder.slots)).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refused_task_learns_of_its_own_items_and_the_processor_in_its_way() {
        let slots = slots();
        let (task, bound, cpu) =
            (Target::Task(Task(1)), Target::TaskOnCpu(Task(1), Cpu(1)), Target::Cpu(Cpu(1)));
        let _held = slots.reserve_all(&[task, task, bound, cpu].map(request)).unwrap();
        let expected = (0, vec![(task, 2), (bound, 1), (cpu, 1)]);
        assert_eq!(refusal(&slots, request(task)), expected);
        assert_eq!(refusal(&slots, request(bound)), expected);
        let elsewhere = Target::TaskOnCpu(Task(1), Cpu(0));
        let wide = Request { weight: 3, ..request(elsewhere) };
        assert_eq!(refusal(&slots, wide), (2, vec![(task, 2)]));
    }

    #[test]
    fn a_refused_processor_learns_of_the_tasks_that_use_most() {
        let slots = slots();
        let (many, few, cpu) = (Target::Task(Task(1)), Target::Task(Task(2)), Target::Cpu(Cpu(0)));
        let _held = slots.reserve_all(&[many, many, many, few, cpu].map(request)).unwrap();
        assert_eq!(refusal(&slots, request(cpu)), (0, vec![(cpu, 1), (many, 3)]));
    }

    #[test]
    fn all_or_nothing_gives_back_what_it_took() {
        let slots = slots();
        let task = request(Target::Task(Task(1)));
        assert!(slots.reserve_all(&[task; 5]).is_err());
        assert_eq!(slots.tasks(), 0);
        assert_eq!(slots.reserve_all(&[task; 4]).unwrap().len(), 4);
    }

    #[test]
    fn a_child_inherits_what_its_parent_holds_or_nothing() {
        let slots = slots();
        let (parent, child) = (Task(1), Task(2));
        let targets = [Target::Task(parent), Target::TaskOnCpu(parent, Cpu(1))];
        let _held = slots.reserve_all(&targets.map(request)).unwrap();
        let inherited = slots.inherit(parent, child).unwrap();
        let mut targets: Vec<_> = inherited.iter().map(|held| held.request().target).collect();
        targets.sort();
        assert_eq!(targets, [Target::Task(child), Target::TaskOnCpu(child, Cpu(1))]);
        drop(inherited);
        let _full = slots.reserve_all(&[request(Target::TaskOnCpu(child, Cpu(1))); 3]).unwrap();
        assert!(slots.inherit(parent, child).is_err());
        assert_eq!(refusal(&slots, Request { weight: 4, ..request(Target::Task(child)) }).0, 1);
    }

    #[test]
    fn kinds_share_registers_or_do_not() {
        let target = Target::Task(Task(1));
        let both = [Kind::Data, Kind::Execute].map(|kind| Request::new(target, kind));
        let shared = Slots::new(Registers::Shared(1), 1).unwrap();
        assert!(shared.reserve_all(&both).is_err());
        let separate = Slots::new(Registers::Separate { data: 1, execute: 1 }, 1).unwrap();
        let _held = separate.reserve_all(&both).unwrap();
        assert!(both.iter().all(|&request| separate.reserve(request).is_err()));
    }

    #[test]
    fn requests_that_make_no_sense_are_refused_by_name() {
        let slots = slots();
        let beyond = request(Target::TaskOnCpu(Task(1), Cpu(2)));
        assert_eq!(slots.reserve(beyond).unwrap_err(), Error::NoCpu { cpu: Cpu(2), cpus: 2 });
        let nothing = Request { weight: 0, ..request(Target::Cpu(Cpu(0))) };
        assert_eq!(slots.reserve(nothing).unwrap_err(), Error::NoWeight { target: nothing.target });
        let endless = Request { weight: u32::MAX, ..request(Target::Task(Task(1))) };
        assert_eq!(refusal(&slots, endless), (4, vec![]));
        assert!(matches!(Slots::new(Registers::Shared(17), 1), Err(Error::TooManyRegisters { slots: 17 })));
    }
}
