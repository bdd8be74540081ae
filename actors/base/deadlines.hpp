#pragma once

#include <chrono>

namespace troupe::actors {

/// How long a run, or who starts or examines one, waits for an answer before whoever owes it counts
/// as hung. Deaths are noticed within seconds without these (see liveness): they are for what lives
/// and never answers. How soon silence counts as death is in liveness_settings, what a link waits
/// for in link_options, and what NCCL is waited for in engine::nccl::patience.
struct deadlines {
  std::chrono::seconds connect{5};  ///< A connection to another node.
  std::chrono::seconds greet{10};   ///< The trainer's answer to a node that joins.
  std::chrono::seconds join{30};    ///< All nodes of a run.
  std::chrono::minutes build{10};   ///< A stage, shard or worker, with its part of the model.

  std::chrono::minutes read{30};  ///< A batch of the data.
  /// A stage's part of a step, the decision on it, or a share of it.
  std::chrono::minutes step{60};
  std::chrono::minutes write{60};    ///< A stage's files of a checkpoint, once its step is over.
  std::chrono::minutes update{10};   ///< An optimizer's update; a shard's.
  std::chrono::minutes transfer{5};  ///< What no step waits for; a piece of weights or of state.
  /// A coordinator's count of its workers: by then it knows which are lost, even starved ones.
  std::chrono::seconds count_workers{30};

  /// From one node's word that another is lost to the system's.
  std::chrono::seconds known_loss{5};
  /// From a loss that is known to the system's word on it, which is there at once or never comes.
  std::chrono::milliseconds explained{300};
  /// From the word of one node alone that it has lost another to that one's end: longer than the
  /// trainer needs to hear of either's end.
  std::chrono::milliseconds suspicion{1500};
  /// For a checkpoint under way in a run that has lost a process: the others write their files if
  /// their step could end.
  std::chrono::seconds checkpoint{10};
  /// For those who still write a checkpoint of which a file could not be written.
  std::chrono::seconds stop_writing{30};
  /// For processes of a run that has lost its trainer, which end once they have noticed it: within
  /// a second on the same host, and within the silence that counts as a loss elsewhere.
  std::chrono::seconds orphans{10};

  std::chrono::seconds leave{1};      ///< The answers to a node that leaves in order.
  std::chrono::seconds last_word{1};  ///< The system's word on a process that was lost.
  std::chrono::seconds end{10};       ///< Processes that were told to end.
  std::chrono::seconds terminate{2};  ///< From SIGTERM to SIGKILL.
  /// Once more for a process that was killed and has not ended, as one that a disk holds up.
  std::chrono::minutes held_up{1};

  // Of processes that are started.
  std::chrono::seconds identify{10};  ///< The answer of what may be a program of Troupe.
  std::chrono::seconds become{2};     ///< What was forked, to become its program.
  std::chrono::seconds stopped{1};    ///< One that is stopped and has yet to join its run.
  std::chrono::seconds copied{3};     ///< A zygote's copy of itself; the zygote may be stopped.

  // Of hosts with an agent or without.
  /// A host's list of what it lacks of a program: it hashes what it has before it answers.
  std::chrono::minutes list_files{2};
  std::chrono::hours upload{24};  ///< Of one file; ssh itself notices a network that is gone.
  std::chrono::seconds first_order{30};       ///< A launcher's first word to its agent.
  std::chrono::seconds agent_asks{2};         ///< A launcher's answer to an agent asked to end.
  std::chrono::seconds agent_processes{1};    ///< An agent's processes, before they are killed.
  std::chrono::milliseconds agent_end{1500};  ///< An agent that was told to end.
  std::chrono::seconds agent_last_words{1};   ///< A launcher that reads why its agent ends.
  /// An agent that was told to end a process and says nothing, where another one can run it.
  std::chrono::milliseconds unanswered_end{1500};
  /// An agent that was asked whether it is there, because a node of its host is silent. Shorter
  /// than the half second from the question to the loss of that node.
  std::chrono::milliseconds unanswered_question{350};
  /// An agent that ends its processes: it says each second that it is alive.
  std::chrono::seconds quiet_agent{5};
  /// The first probe of the ways between stages: a lost packet is sent again after 1 s.
  std::chrono::seconds reach{2};
  std::chrono::milliseconds reach_again{500};  ///< After that and a warning: the second probe.

  // After which the user is told who is waited for.
  std::chrono::seconds tell_of_start{2};        ///< An agent or ssh that has not answered.
  std::chrono::milliseconds tell_of_end{1500};  ///< A process that was told to end.

  // Of `troupe doctor`, whose hosts and edges may be broken.
  std::chrono::seconds slow_node{2};  ///< One that the others are examined without at first.
  /// A doctor that a process serves which others have started; it speaks each second.
  std::chrono::seconds silent_doctor{10};
  std::chrono::seconds examine{30};          ///< A host's facts, or the probe of an edge.
  std::chrono::seconds listen{10};           ///< The address of an examiner that listens.
  std::chrono::seconds examiner_end{5};      ///< An examiner that was killed.
  std::chrono::seconds probe_connect{2};     ///< A lost packet is sent again after 1 s.
  std::chrono::seconds probe_answer{2};      ///< Over a link.
  std::chrono::seconds probe_socket{5};      ///< The next bytes over a plain socket.
  std::chrono::milliseconds edge_word{300};  ///< The first word over an edge that works.
};

inline constexpr deadlines usual_deadlines;

}  // namespace troupe::actors
