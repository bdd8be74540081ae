#include "messages/link/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

#include "messages/link/cluster_secret.hpp"

namespace troupe::messages {
namespace {

constexpr std::uint64_t page = 4096;
// Nobody can shrink what we have mapped, which would end us with SIGBUS, or write what we lend.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

tl::unexpected<error> cannot(const char* what) {
  return fail(errc::io_failed, fmt::format("{}: {}", what, std::strerror(errno)));
}

/// MAP_FAILED when it cannot be. A dump of the process leaves it out, or would fill its holes.
void* map(int file, std::uint64_t bytes, int access) {
  void* const data = ::mmap(nullptr, bytes, access, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (data != MAP_FAILED) ::madvise(data, bytes, MADV_DONTDUMP);
  return data;
}

/// Whether a hole in the file reads as zeros. Of huge pages it would end who reads it with SIGBUS,
/// and no seal keeps anybody from making one; files of other systems can shrink.
bool reads_holes(int file) {
  struct statfs system {};
  return ::fstatfs(file, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

}  // namespace

descriptor hold_process(pid_t process) {
  // glibc 2.36 declares pidfd_open for C only.
  return descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

bool has_ended(const descriptor& process) {
  pollfd state{process.get(), POLLIN, 0};
  return !process || ::poll(&state, 1, 0) > 0;
}

/// The mapping and which of it is free.
class shared_memory::store {
 public:
  store(descriptor file, std::byte* mapped, const memory_location& where)
      : location(where), data(mapped), file_(std::move(file)) {
    std::ranges::copy(location.mark, data);
    add_free(page, location.bytes - page);
  }
  store(const store&) = delete;
  store& operator=(const store&) = delete;
  ~store() { ::munmap(data, location.bytes); }

  std::optional<std::uint64_t> take(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    // The smallest that fits: blocks of the same sizes come again and again, and the largest
    // is the rest that has never been used.
    const auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) return std::nullopt;
    const auto [room, offset] = *best;
    remove_free(free_.find(offset));
    if (room > bytes) add_free(offset + bytes, room - bytes);
    taken_.emplace(offset, bytes);
    return offset;
  }

  void give_back(std::uint64_t offset) {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = taken_.extract(offset).mapped();
    auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        remove_free(before);
      }
    }
    if (next != free_.end() && offset + bytes == next->first) {
      bytes += next->second;
      remove_free(next);
    }
    add_free(offset, bytes);
  }

  const memory_location location;
  std::byte* const data;

 private:
  using blocks = std::map<std::uint64_t, std::uint64_t>;  // bytes by offset

  void add_free(std::uint64_t offset, std::uint64_t bytes) {
    free_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove_free(blocks::iterator block) {
    by_size_.erase({block->second, block->first});
    free_.erase(block);
  }

  const descriptor file_;
  std::mutex mutex_;
  blocks free_;                                                // no two touch
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // the same, bytes and offset
  std::unordered_map<std::uint64_t, std::uint64_t> taken_;     // bytes by offset
};

result<std::shared_ptr<shared_memory>> shared_memory::make() {
  memory_location where;
  where.process = static_cast<std::uint64_t>(::getpid());
  where.bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  fill_random(where.mark);
  rlimit largest{};  // a file beyond it would end us with SIGXFSZ
  if (::getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < where.bytes)
    return fail(errc::io_failed, "the limit on file sizes (ulimit -f) is below the memory's size");
  descriptor file(::memfd_create("troupe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(where.bytes)) != 0)
    return cannot("no memory that can be shared");
  where.descriptor = file.get();
  void* const data = map(file.get(), where.bytes, PROT_READ | PROT_WRITE);
  if (data == MAP_FAILED) return cannot("cannot map memory that can be shared");
  ::madvise(data, where.bytes, MADV_HUGEPAGE);  // where the machine allows it
  ::madvise(data, where.bytes, MADV_DONTFORK);  // a child would hand out the same blocks
  auto mapped = std::make_shared<store>(std::move(file), static_cast<std::byte*>(data), where);
  if (::fcntl(where.descriptor, F_ADD_SEALS, seals) != 0)
    return cannot("cannot seal memory that can be shared");
  return std::shared_ptr<shared_memory>(new shared_memory(std::move(mapped)));
}

payload shared_memory::allocate(std::size_t bytes) {
  drop_orphans();
  if (bytes == 0 || bytes > store_->location.bytes) return {};
  const auto offset = store_->take((bytes + page - 1) / page * page);
  if (!offset) return {};
  std::byte* const data = store_->data + *offset;
  return {.data = data, .bytes = bytes, .owner = {data, [from = store_, at = *offset](void*) {
                                                    from->give_back(at);
                                                  }}};
}

std::optional<std::uint64_t> shared_memory::offset_of(const payload& bytes) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data);
  const auto base = reinterpret_cast<std::uintptr_t>(store_->data);
  if (begin < base || begin - base >= store_->location.bytes) return std::nullopt;
  return begin - base;
}

const memory_location& shared_memory::location() const noexcept {
  return store_->location;
}

void shared_memory::keep_until_end(const std::shared_ptr<descriptor>& process,
                                   std::vector<payload> lent) {
  const std::lock_guard lock(mutex_);
  orphans_.push_back({process, std::move(lent)});
}

void shared_memory::drop_orphans() {
  std::vector<orphans> over;  // blocks are freed without the lock
  const std::lock_guard lock(mutex_);
  const auto last = std::ranges::partition(
      orphans_, [](const orphans& each) { return !has_ended(*each.process); });
  std::ranges::move(last, std::back_inserter(over));
  orphans_.erase(last.begin(), last.end());
}

result<std::shared_ptr<borrowed_memory>> borrowed_memory::open(const memory_location& where,
                                                               const descriptor& file) {
  if (where.process == 0) return fail(errc::io_failed, "the peer's process is not seen from here");
  auto process = std::make_shared<descriptor>(hold_process(static_cast<pid_t>(where.process)));
  if (!*process) return cannot("cannot hold on to the peer's process");
  if (!file) return fail(errc::io_failed, "the peer handed no memory over");
  struct stat status {};
  const int sealed = ::fcntl(file.get(), F_GET_SEALS);
  if (::fstat(file.get(), &status) != 0 || sealed < 0 || (sealed & F_SEAL_SHRINK) == 0 ||
      static_cast<std::uint64_t>(status.st_size) != where.bytes || where.bytes < page)
    return fail(errc::io_failed, "the peer's memory is not what it says");
  if (!reads_holes(file.get()))
    return fail(errc::io_failed, "the peer's memory is not of ordinary pages (shmem)");
  void* const data = map(file.get(), where.bytes, PROT_READ);
  if (data == MAP_FAILED) return cannot("cannot map the peer's memory");
  std::shared_ptr<borrowed_memory> out(
      new borrowed_memory(static_cast<const std::byte*>(data), where.bytes, std::move(process)));
  if (std::memcmp(data, where.mark.data(), where.mark.size()) != 0)
    return fail(errc::io_failed, "the peer's memory bears another mark");
  return out;
}

borrowed_memory::~borrowed_memory() {
  ::munmap(const_cast<std::byte*>(data_), bytes_);
}

}  // namespace troupe::messages
