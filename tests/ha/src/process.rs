use std::fs;

/// State and parent of a process, after its name in parentheses.
fn stat(pid: i32) -> Option<(String, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
}

/// It is there and no zombie.
pub fn lives(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z")
}

pub fn children(of: i32) -> Vec<i32> {
    fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| stat(pid).is_some_and(|(_, parent)| parent == of))
        .collect()
}
