//! Slot accounting as the kernel did it before the origin: a list. It is the baseline of the bench
//! and the oracle of the tests.
//!
//! All tasks' breakpoints are on one list. To find the slots of a task on a processor, the list is
//! walked once for each processor that the breakpoint may be on: three times for each breakpoint
//! (is there space, count it in, count it out), `tasks × processors` steps each. The kernel guarded
//! it by one mutex; so do the users of this.
//!
//! This list is faster than the kernel's: a node here is 40 bytes of one array, there it was part
//! of an event of more than a thousand bytes.

use crate::request::CLASSES;
use crate::{Cpu, MOST_SLOTS, Registers, SlotRequest, Target, TaskId};

/// The end of the list.
const NONE: usize = usize::MAX;

/// The accounts of slots as a plain list: see the module.
#[derive(Debug)]
pub struct SlotList {
    registers: Registers,
    cpus: Vec<[PerCpu; CLASSES]>,
    nodes: Vec<Node>,
    first: usize,
    last: usize,
    free: Vec<usize>,
}

/// Slots of one class on one processor.
#[derive(Debug, Clone, Default)]
struct PerCpu {
    pinned: u32,
    /// `tasks[k]` tasks have exactly `k + 1`.
    tasks: [u32; MOST_SLOTS as usize],
}

#[derive(Debug)]
struct Node {
    request: SlotRequest,
    before: usize,
    next: usize,
}

impl SlotList {
    /// All slots of `cpus` processors, free.
    pub fn new(registers: Registers, cpus: u32) -> Self {
        let cpus = vec![<[PerCpu; CLASSES]>::default(); cpus as usize];
        Self { registers, cpus, nodes: Vec::new(), first: NONE, last: NONE, free: Vec::new() }
    }

    /// Takes slots. Returns the place in the list, for [`SlotList::release`], or `None` if there is
    /// no space.
    pub fn reserve(&mut self, request: SlotRequest) -> Option<usize> {
        let class = self.registers.class(request.kind);
        let busiest = self.cpus_of(request).map(|cpu| self.used_on(request, class, cpu)).max().unwrap_or(0);
        if busiest + request.weight > self.registers.slots(request.kind) {
            return None;
        }
        self.count(request, class, true);
        Some(self.append(request))
    }

    /// Gives back the slots at a place that `reserve` returned.
    pub fn release(&mut self, place: usize) {
        let request = self.unlink(place);
        self.count(request, self.registers.class(request.kind), false);
    }

    /// Takes the slots of a new task, without checking whether there is space and without walking
    /// the list: so that a long list can be made in reasonable time.
    pub fn populate(&mut self, requests: &[SlotRequest]) {
        for (number, &request) in requests.iter().enumerate() {
            let class = self.registers.class(request.kind);
            for cpu in self.cpus_of(request) {
                let tasks = &mut self.cpus[cpu][class].tasks;
                if number > 0 {
                    tasks[number - 1] -= 1;
                }
                tasks[number] += 1;
            }
            self.append(request);
        }
    }

    fn cpus_of(&self, request: SlotRequest) -> std::ops::Range<usize> {
        match request.target {
            Target::Task(_) => 0..self.cpus.len(),
            Target::Cpu(Cpu(cpu)) | Target::TaskOnCpu(_, Cpu(cpu)) => cpu as usize..cpu as usize + 1,
        }
    }

    /// Slots in use on a processor, as the target of the request sees them.
    fn used_on(&self, request: SlotRequest, class: usize, cpu: usize) -> u32 {
        let per_cpu = &self.cpus[cpu][class];
        let of_tasks = match request.target {
            Target::Cpu(_) => {
                per_cpu.tasks.iter().rposition(|&tasks| tasks > 0).map_or(0, |index| index as u32 + 1)
            }
            Target::Task(task) | Target::TaskOnCpu(task, _) => self.pinned(task, class, cpu),
        };
        per_cpu.pinned + of_tasks
    }

    /// Slots of a task on a processor, by walking the list.
    fn pinned(&self, task: TaskId, class: usize, cpu: usize) -> u32 {
        let mut slots = 0;
        let mut at = self.first;
        while let Some(node) = self.nodes.get(at) {
            let counts = match node.request.target {
                Target::Task(of) => of == task,
                Target::TaskOnCpu(of, Cpu(on)) => of == task && on as usize == cpu,
                Target::Cpu(_) => false,
            };
            if counts && self.registers.class(node.request.kind) == class {
                slots += node.request.weight;
            }
            at = node.next;
        }
        slots
    }

    /// Counts a request in or out; it is not on the list meanwhile.
    fn count(&mut self, request: SlotRequest, class: usize, take: bool) {
        for cpu in self.cpus_of(request) {
            let (Target::Task(task) | Target::TaskOnCpu(task, _)) = request.target else {
                let pinned = &mut self.cpus[cpu][class].pinned;
                *pinned = if take { *pinned + request.weight } else { *pinned - request.weight };
                continue;
            };
            let without = self.pinned(task, class, cpu);
            let with = without + request.weight;
            let (from, to) = if take { (without, with) } else { (with, without) };
            let tasks = &mut self.cpus[cpu][class].tasks;
            if from > 0 {
                tasks[from as usize - 1] -= 1;
            }
            if to > 0 {
                tasks[to as usize - 1] += 1;
            }
        }
    }

    fn append(&mut self, request: SlotRequest) -> usize {
        let node = Node { request, before: self.last, next: NONE };
        let place = if let Some(place) = self.free.pop() {
            self.nodes[place] = node;
            place
        } else {
            self.nodes.push(node);
            self.nodes.len() - 1
        };
        match self.nodes.get_mut(self.last) {
            Some(last) => last.next = place,
            None => self.first = place,
        }
        self.last = place;
        place
    }

    fn unlink(&mut self, place: usize) -> SlotRequest {
        let Node { request, before, next } = self.nodes[place];
        match self.nodes.get_mut(before) {
            Some(node) => node.next = next,
            None => self.first = next,
        }
        match self.nodes.get_mut(next) {
            Some(node) => node.before = before,
            None => self.last = before,
        }
        self.free.push(place);
        request
    }
}
