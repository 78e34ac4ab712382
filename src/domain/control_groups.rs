//! The control groups that limit this process's memory (cgroups(7), both versions), as in a
//! container. The kernel kills a process of a group that exceeds its limit.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group with a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControlGroup {
    directory: PathBuf,
    files: &'static Files,
    /// Limit in bytes, for this group and the groups in it.
    limit: u64,
}

/// Names of the files in one version of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat`: file caches, which the kernel can reclaim.
    caches: [&'static str; 2],
    /// The limit of swap, and the usage that counts against it.
    swap: [&'static str; 2],
    /// The limit of swap covers memory and swap together.
    is_joint: bool,
}

const FIRST: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    caches: ["total_active_file", "total_inactive_file"],
    swap: ["memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"],
    is_joint: true,
};
const SECOND: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    caches: ["active_file", "inactive_file"],
    swap: ["memory.swap.max", "memory.swap.current"],
    is_joint: false,
};

impl ControlGroup {
    /// Returns the groups that limit this process, from its own group outward.
    pub(super) fn of_this_process() -> Vec<ControlGroup> {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        let Some((files, root, own)) = find(&read("cgroup"), &read("mountinfo")) else {
            return Vec::new();
        };
        let directories = own.ancestors().take_while(|it| it.starts_with(&root));
        directories.filter_map(|it| Self::at(it, files)).collect()
    }

    /// Returns the group of this directory, if it has a limit.
    fn at(directory: &Path, files: &'static Files) -> Option<ControlGroup> {
        let limit = number_in(&directory.join(files.limit))?;
        Some(ControlGroup {
            directory: directory.to_owned(),
            files,
            limit,
        })
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many bytes the group can still take, if the system has `swap_left` bytes of swap
    /// left. `None`: the group no longer exists.
    pub(super) fn room(&self, swap_left: u64) -> Option<u64> {
        let number = |name| number_in(&self.directory.join(name));
        let left = self.limit.saturating_sub(number(self.files.usage)?);
        let stat = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let caches = self
            .files
            .caches
            .map(|name| field(&stat, name).unwrap_or(0));
        let room = left.saturating_add(caches.iter().sum());
        let [limit, usage] = self.files.swap.map(number);
        // `None`: the group may use all swap that is left.
        let swap = limit.map(|limit| limit.saturating_sub(usage.unwrap_or(0)));
        let both = room.saturating_add(swap_left);
        Some(match (swap, self.files.is_joint) {
            (None, _) => both,
            (Some(swap), false) => room.saturating_add(swap.min(swap_left)),
            (Some(joint), true) => both.min(joint.saturating_add(caches.iter().sum())),
        })
    }
}

/// Finds the groups that account for this process's memory: the names of their files, the outermost
/// directory that this process sees, and the directory of its own group.
fn find(groups: &str, mounts: &str) -> Option<(&'static Files, PathBuf, PathBuf)> {
    let mut groups = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let has_memory = |controllers: &str| controllers.split(',').any(|it| it == "memory");
    // The second version has one line without controllers. It counts only if no line of the first
    // version names the controller `memory`.
    let all: Vec<_> = groups.by_ref().collect();
    let first = all.iter().find(|(controllers, _)| has_memory(controllers));
    let (files, path, kind) = match first {
        Some((_, path)) => (&FIRST, path, "cgroup"),
        None => (
            &SECOND,
            &all.iter().find(|it| it.0.is_empty())?.1,
            "cgroup2",
        ),
    };
    mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        if system.next()? != kind || kind == "cgroup" && !has_memory(system.nth(1)?) {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        let (inside, at) = (mount.next()?, PathBuf::from(mount.next()?));
        // The path starts at the root of the hierarchy, of which a container may see only a part.
        let path = Path::new(path).strip_prefix(inside).ok();
        let is_inside = |it: &&Path| !it.components().any(|part| part.as_os_str() == "..");
        let own = path
            .filter(is_inside)
            .map_or_else(|| at.clone(), |it| at.join(it));
        Some((files, at, own))
    })
}

/// Returns the number that a file consists of; `None` if there is no limit, which the second
/// version writes as a word and the first as a number larger than any memory.
fn number_in(file: &Path) -> Option<u64> {
    let number: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (number < 1 << 62).then_some(number)
}

fn field(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(groups: &str, mounts: &str) -> Option<(&'static str, String, String)> {
        let shown = |path: PathBuf| path.display().to_string();
        let (files, root, own) = find(groups, mounts)?;
        Some((files.limit, shown(root), shown(own)))
    }

    #[test]
    fn a_process_finds_its_group_in_either_version_and_in_a_container() {
        let second = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let first = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let part = "32 23 0:28 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let memory = "/sys/fs/cgroup/memory";
        for (groups, mounts, limit, root, own) in [
            (
                "0::/a/b\n",
                second,
                "memory.max",
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/a/b",
            ),
            (
                "0::/\n",
                second,
                "memory.max",
                "/sys/fs/cgroup",
                "/sys/fs/cgroup/",
            ),
            (
                "0::/../y\n",
                second,
                "memory.max",
                "/sys/fs/cgroup",
                "/sys/fs/cgroup",
            ),
            (
                "4:memory:/a\n0::/b\n",
                first,
                "memory.limit_in_bytes",
                memory,
                "/sys/fs/cgroup/memory/a",
            ),
            (
                "4:memory:/docker/x/y\n",
                part,
                "memory.limit_in_bytes",
                memory,
                "/sys/fs/cgroup/memory/y",
            ),
        ] {
            let expected = (limit, root.to_owned(), own.to_owned());
            assert_eq!(found(groups, mounts), Some(expected), "{groups}");
        }
        assert_eq!(found("", second), None);
        assert_eq!(found("0::/a\n", first), None);
    }

    /// File caches can be reclaimed, and memory that can be swapped out makes room.
    #[test]
    fn the_room_of_a_group_is_what_it_can_still_take() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name, text| fs::write(directory.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        assert_eq!(ControlGroup::at(directory.path(), &SECOND), None);
        write("memory.max", "1000\n");
        write("memory.current", "900\n");
        write(
            "memory.stat",
            "anon 500\nactive_file 20\ninactive_file 30\n",
        );
        let group = ControlGroup::at(directory.path(), &SECOND).unwrap();
        assert_eq!(group.limit(), 1000);
        assert_eq!(group.room(0), Some(150));
        assert_eq!(group.room(70), Some(220));
        write("memory.swap.max", "50\n");
        write("memory.swap.current", "10\n");
        assert_eq!(group.room(70), Some(190));
        write("memory.limit_in_bytes", "1000\n");
        write("memory.usage_in_bytes", "900\n");
        write(
            "memory.stat",
            "total_active_file 20\ntotal_inactive_file 30\n",
        );
        let group = ControlGroup::at(directory.path(), &FIRST).unwrap();
        assert_eq!(group.room(70), Some(220));
        write("memory.memsw.limit_in_bytes", "1000\n");
        write("memory.memsw.usage_in_bytes", "900\n");
        assert_eq!(group.room(70), Some(150));
        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(ControlGroup::at(directory.path(), &FIRST), None);
    }
}
