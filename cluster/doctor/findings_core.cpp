#include "cluster/doctor/findings_core.hpp"

#include <algorithm>
#include <iterator>

#include "cluster/launch/open_files.hpp"
#include "messages/base/format.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t shared_bytes_a_process = 4 * mebibyte;  // UCX's segments, a peer
constexpr std::uint64_t any_number = std::uint64_t{1} << 40;
constexpr double tight_memory = 1.25;  // of what is needed at least, where no more is predicted

using findings = std::vector<finding>;

std::string number_text(double value) {
  return format(value < 10 ? "%.1f" : "%.0f", value);
}

/// A quota may allow a part of one.
std::string cores_text(double cores) {
  const auto whole = static_cast<int>(cores);
  return cores == whole ? counted(whole, "core") : number_text(cores) + " cores";
}

bool has_work(const patient& node) {
  return !node.stages.empty() || node.server_processes > 0;
}

/// What else to do about too many threads of a node.
std::string fewer_threads(const patient& node, bool by_quota) {
  if (node.server_processes > 0)
    return std::string(by_quota ? "raise the container's CPU limit, or " : "") +
           "lower threads_per_worker or threads_per_shard in [server], or take fewer workers";
  return by_quota ? "raise the container's CPU limit, or lower `cores` or `threads` in its "
                    "[[node]]"
                  : "lower `cores` or `threads` in its [[node]] ([pipeline] "
                    "threads_per_stage), or put fewer stages there";
}

void core_findings(const patient& node, findings& out) {
  if (!has_work(node)) return;
  const auto& host = *node.facts;
  const bool by_quota = host.quota_cores > 0 && host.quota_cores < host.cores;
  const double cores = by_quota ? host.quota_cores : host.cores;
  const std::string has = cores_text(cores) + (by_quota ? ", which its control group allows" : "");
  if (node.threads <= cores) {
    out.push_back(
        {severity::ok, "cores", node.name, counted(node.threads, "thread") + " on " + has, ""});
    return;
  }
  out.push_back({severity::warning, "cores", node.name,
                 std::string(node.server_processes > 0 ? "its processes" : "its stages") +
                     " have " + counted(node.threads, "thread") + " together, on " + has +
                     ": threads that wait for a core slow all of them down",
                 fewer_threads(node, by_quota)});
}

/// What a node's stages need, in words; with activations where that is predicted.
std::string memory_need(const patient& node) {
  const auto need = bytes_text(node.needed_bytes) + " for " + node.what_is_needed;
  if (node.server_processes > 0)
    return need + "; gradients, the workers and the trainer are not counted";
  if (node.predicted_bytes > 0)
    return need + ", and " + bytes_text(node.predicted_bytes) + " at the predicted peak";
  return need + "; activations are not counted" +
         (node.why_not_predicted.empty() ? "" : " (" + node.why_not_predicted + ")");
}

void memory_findings(const patient& node, findings& out) {
  const auto& host = *node.facts;
  const std::string has = bytes_text(host.memory_bytes) + " free" +
                          (host.is_memory_limited ? " within its control group's limit" : "");
  if (!has_work(node)) return;
  if (node.needed_bytes == 0) {
    out.push_back({severity::ok, "memory", node.name, has + "; the need is not predicted", ""});
    return;
  }
  const auto need = memory_need(node);
  const auto least = static_cast<double>(node.needed_bytes);
  const bool is_tight =
      node.predicted_bytes == 0 && least * tight_memory > static_cast<double>(host.memory_bytes);
  const std::string or_raise =
      host.is_memory_limited ? "; or raise the container's memory limit" : "";
  const std::string remedy =
      (node.server_processes > 0
           ? "take a smaller model, or an optimizer with less state"
           : "put fewer stages there, cut the model into more stages, or take an optimizer with "
             "less state") +
      or_raise;
  if (node.needed_bytes > host.memory_bytes)
    out.push_back(
        {severity::error, "memory", node.name, "has " + has + ", but needs " + need, remedy});
  else if (node.predicted_bytes > host.memory_bytes)
    out.push_back({severity::warning, "memory", node.name, "has " + has + ", but needs " + need,
                   "take smaller micro-batches (more of them: --micro-batches), recompute "
                   "activations (--recompute), or put fewer stages there" +
                       or_raise});
  else if (is_tight)
    out.push_back({severity::warning, "memory", node.name,
                   "has " + has + ", which leaves little for " +
                       (node.server_processes > 0 ? "all else" : "activations") + ": needs " + need,
                   remedy});
  else
    out.push_back({severity::ok, "memory", node.name, has + "; needs " + need, ""});
}

void shared_memory_findings(const patient& node, findings& out) {
  const auto& host = *node.facts;
  if (node.shared_memory_processes == 0) return;
  const auto need = shared_bytes_a_process * static_cast<unsigned>(node.shared_memory_processes);
  const std::string remedy =
      "give the container more: --shm-size=1g (Docker, Podman), an emptyDir with medium: Memory at "
      "/dev/shm (Kubernetes); or choose [link] transport = \"tcp\"";
  const std::string has = bytes_text(host.shared_free_bytes) + " free of " +
                          bytes_text(host.shared_bytes) + " in /dev/shm";
  if (!host.shared_error.empty())
    out.push_back({severity::error, "shared memory", node.name,
                   "/dev/shm cannot be used: " + host.shared_error, remedy});
  else if (host.shared_free_bytes < shared_bytes_a_process)
    out.push_back({severity::error, "shared memory", node.name,
                   has + ", but each of its processes takes " + bytes_text(shared_bytes_a_process),
                   remedy});
  else if (host.shared_free_bytes < need)  // a link goes on without, through its door
    out.push_back({severity::warning, "shared memory", node.name,
                   has + ", but its processes take " + bytes_text(need) +
                       ": what finds no room passes a socket, which is slower",
                   remedy});
  else
    out.push_back({severity::ok, "shared memory", node.name,
                   has + "; its processes take " + bytes_text(need), ""});
  if (!host.reading_error.empty() && node.shared_memory_processes > 1)
    out.push_back(
        {severity::warning, "shared memory", node.name,
         "processes here cannot read each other's memory (process_vm_readv: " + host.reading_error +
             "), so tensors between them are copied through a socket",
         "allow it: --cap-add SYS_PTRACE or a seccomp profile with process_vm_readv (Docker, "
         "Podman), securityContext.capabilities.add: [SYS_PTRACE] (Kubernetes), "
         "kernel.yama.ptrace_scope below 2"});
}

void open_file_findings(const patient& node, findings& out) {
  const auto& host = *node.facts;
  const auto limit = node.raises_limits ? host.most_open_files : host.open_files;
  if (node.needed_files == 0 || limit == 0) return;
  const auto need = std::to_string(node.needed_files);
  if (limit < node.needed_files)
    out.push_back({severity::error, "open files", node.name,
                   "a process may have " + std::to_string(limit) +
                       " open files there, but one of the run needs about " + need,
                   cluster::raise_open_files(node.needed_files)});
  else
    out.push_back({severity::ok, "open files", node.name,
                   (limit > any_number ? "any number" : std::to_string(limit)) +
                       " for a process; needs about " + need,
                   ""});
}

void user_findings(const patient& node, findings& out) {
  const auto& host = *node.facts;
  if (!host.user.empty()) return;
  const std::string uid = "user " + std::to_string(host.uid) + " has no name here";
  const std::string remedy = "add the user to the image's /etc/passwd, or run as one that is there";
  if (node.starts_others_by_ssh)
    out.push_back({severity::error, "user", node.name,
                   uid + ", and ssh, which starts the other nodes, refuses to run for such a user",
                   remedy});
  else
    out.push_back({severity::warning, "user", node.name,
                   uid + ": programs that look it up, as ssh does, fail", remedy});
}

void fabric_findings(const patient& node, bool is_sealed, findings& out) {
  for (const auto& port : node.facts->fabrics) {
    const std::string what =
        (port.kind == "Ethernet" ? "RoCE" : port.kind) + " " + port.device + " (" + port.rate + ")";
    if (port.state != "ACTIVE")
      out.push_back({severity::warning, "fabric", node.name, what + " is " + port.state,
                     "see its cable, its switch and the subnet manager (ibstat)"});
    else if (is_sealed)
      out.push_back({severity::warning, "fabric", node.name,
                     what + " is left unused: the network is sealed, and that is tcp",
                     "where no stranger reaches that fabric, choose [link] network = \"trusted\""});
    else
      out.push_back({severity::ok, "fabric", node.name, what + " is there for UCX", ""});
  }
}

void data_findings(const patient& node, findings& out) {
  const auto& host = *node.facts;
  if (host.data_source.empty()) return;
  if (host.data_error.empty())
    out.push_back({severity::ok, "data", node.name, host.data_source + " can be read", ""});
  else
    out.push_back({severity::error, "data", node.name, host.data_error,
                   "put the data there on this node, or name where they are ([data] source)"});
}

}  // namespace

const char* name_of(severity level) noexcept {
  return level == severity::ok ? "ok" : level == severity::warning ? "warning" : "error";
}

std::string bytes_text(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= 1024 * mebibyte) return number_text(value / (1024.0 * mebibyte)) + " GiB";
  if (bytes >= mebibyte) return number_text(value / mebibyte) + " MiB";
  return number_text(value / 1024) + " KiB";
}

findings host_findings(const patient& node, bool is_sealed) {
  findings out;
  for (const auto& text : node.warnings) {
    auto [what, remedy] = split_remedy(text);
    out.push_back({severity::warning, "node", node.name, std::move(what), std::move(remedy)});
  }
  if (!node.facts && node.lost.empty()) return out;  // what kept us from it is said elsewhere
  if (!node.facts) {
    auto [what, remedy] = split_remedy(node.lost);
    out.push_back({node.never_came ? severity::warning : severity::error, "node", node.name,
                   std::move(what), std::move(remedy)});
    return out;
  }
  const auto& host = *node.facts;
  std::string who = host.host + ", " + host.processor;
  if (!host.container.empty()) who += ", in a container (" + host.container + ")";
  out.push_back({severity::ok, "node", node.name, who, ""});
  if (!node.listening_error.empty())
    out.push_back(
        {severity::error, "port", node.name, "it cannot listen: " + node.listening_error,
         "name an address of this node (address or network in its [[node]]; [link] listen "
         "for the trainer) and a port that is free"});
  core_findings(node, out);
  memory_findings(node, out);
  shared_memory_findings(node, out);
  open_file_findings(node, out);
  user_findings(node, out);
  std::ranges::move(folder_findings(node), std::back_inserter(out));
  data_findings(node, out);
  fabric_findings(node, is_sealed, out);
  return out;
}

said_failure split_remedy(const std::string& text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')' && depth > 0) --depth;
    if (depth == 0 && text.compare(i, 2, "; ") == 0) return {text.substr(0, i), text.substr(i + 2)};
  }
  const auto end = text.rfind("; ");  // what it quotes leaves a parenthesis open
  if (end == std::string::npos) return {text, ""};
  return {text.substr(0, end), text.substr(end + 2)};
}

std::string with_remedy_of_start(const std::string& why) {
  if (!split_remedy(why).remedy.empty()) return why;
  if (why.find("error while loading shared libraries") != std::string::npos)
    return why + "; see `environment` of its [[node]], with which the program finds its libraries";
  return why +
         "; see `environment` and `working_folder` of its [[node]], with which the program is "
         "started there, and what it writes if it is started so by hand";
}

std::vector<std::string> unexamined_nodes(const examination& all) {
  std::vector<std::string> out;
  for (const auto& node : all.nodes)
    if (!node.facts) out.push_back(node.name);
  return out;
}

examination of_settings(const std::vector<std::string>& errors) {
  examination out;
  for (const auto& each : errors)
    out.others.push_back({severity::error, "settings", "", each,
                          "correct the setting that is named; troupe check shows them all"});
  return out;
}

findings findings_of(const examination& all) {
  findings out = all.others;
  const auto append = [&out](findings more) { std::ranges::move(more, std::back_inserter(out)); };
  for (const auto& node : all.nodes) append(host_findings(node, all.is_sealed));
  append(shared_disk_findings(all.nodes));
  append(version_findings(all.nodes));
  append(clock_findings(all));
  append(edge_findings(all.edges));
  return out;
}

severity worst_of(const findings& all) noexcept {
  auto worst = severity::ok;
  for (const auto& each : all) worst = std::max(worst, each.level);
  return worst;
}

}  // namespace troupe::cluster::doctor
