#pragma once

#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

/// Every typed actor of a training run. An error answer carries a troupe::error (see errors.hpp).
/// The messages themselves are declared in messages/, by conversation.
namespace troupe::actors {

/// One pipeline stage: a slice of the model or several, its chunks, and their places in the flow.
/// Lives on any node.
using stage_actor = caf::typed_actor<
    // From whoever composes the pipeline, before `connect_stage`: what the stage can sum gradients
    // with beside links, and an invitation for its replicas. Errors: transport_missing,
    // handler_failed.
    caf::replies_to<struct ask_sum_offer>::with<struct sum_offered>,
    caf::replies_to<struct invite_replicas>::with<struct replicas_invited>,
    // From whoever composes the pipeline, once, before the first `run_stage`.
    caf::replies_to<struct connect_stage>::with<struct acknowledged>,
    // From the trainer, before the first `run_stage` that names it. Errors: bad_config (a rule that
    // the plan breaks, chunks that are not the stage's), bad_frame (its number or kind).
    caf::replies_to<struct announce_plan>::with<struct acknowledged>,
    // From the trainer. The answer comes when the stage's part of the step is over and a training
    // step was applied or skipped. Several may be outstanding; they run in order. Errors:
    // handler_failed (the arithmetic threw), stale, bad_frame, bad_config (a plan that was not
    // announced, or is of another kind of step).
    caf::replies_to<struct run_stage>::with<struct stage_done>,
    // From the stage of the slice before (perhaps itself) or the feeder, in the order of
    // micro-batches; may come before the `run_stage` of its step.
    caf::reacts_to<struct activation>,
    // From the feeder, to the stage of the last slice.
    caf::reacts_to<struct target>,
    // From the stage of the slice after.
    caf::reacts_to<struct gradient>,
    // From the stage of the slice before or after, instead of an activation or a gradient, where
    // the two have a port; the answer of its receiver, where that begins first; and from the own
    // ports. Errors, which fail the steps under way: bad_frame for what is out of turn.
    caf::reacts_to<struct announced_tensor>, caf::reacts_to<struct awaited_tensor>,
    caf::reacts_to<struct tensor_moved>,
    // From the neighbour that uses what this stage sent.
    caf::reacts_to<struct credit>,
    // From the stage's own work thread.
    caf::reacts_to<struct output_ready>, caf::reacts_to<struct work_done>,
    caf::reacts_to<struct losses_known>, caf::reacts_to<struct gradients_ready>,
    caf::reacts_to<struct step_undone>,
    // From a stage with which this one shares a weight, once per training step; may come before
    // this stage's own gradients are there.
    caf::reacts_to<struct tied_gradient>,
    // From the same stage of another replica, in a training step: its parts of the buckets that
    // this stage adds up, perhaps before its own gradients are there, the sums of the others, what
    // its micro-batches give to running statistics, and its parameters after an update. Errors,
    // which fail the step: bad_frame for what does not fit, peer_lost for a replica that is gone.
    caf::reacts_to<struct replica_gradients>, caf::reacts_to<struct replica_statistics>,
    // The same in the middle of an action, where batch norm is synchronized; and from the own work
    // thread, which waits for the sum.
    caf::reacts_to<struct replica_norm>, caf::reacts_to<struct norm_given>,
    caf::reacts_to<struct replica_parameters>,
    // From the stage's own threads.
    caf::reacts_to<struct gradient_final>, caf::reacts_to<struct replicas_added>,
    caf::reacts_to<struct replicas_gathered>,
    // From the trainer, between steps, piece after piece (see transfer/pieces.hpp). Errors:
    // bad_data naming the tensor; bad_frame for a piece that is not due; bad_config for a chunk
    // that the stage does not have; stale where there was no dry run, or no evaluation without
    // labels. After an error in the middle of a load the stage runs no step until it has been
    // loaded whole.
    caf::replies_to<struct load_weights>::with<struct acknowledged>,
    caf::replies_to<struct read_weights>::with<struct weights_piece>,
    caf::replies_to<struct load_files>::with<struct files_loaded>,
    caf::replies_to<struct read_outputs>::with<struct outputs_piece>,
    caf::replies_to<struct read_dry_run>::with<struct dry_run_part>,
    // The same of its optimizer's state, of all chunks, which the optimizer answers.
    caf::replies_to<struct load_state>::with<struct acknowledged>,
    caf::replies_to<struct read_state>::with<struct kept_state>,
    // From the trainer, between steps, if versions are kept. The first is answered once all
    // keepers have the stage's present state, the second once the stage has loaded a version.
    // Errors: those of keepers; bad_data for a version that does not fit, bad_config within a step.
    caf::replies_to<struct take_version>::with<struct acknowledged>,
    caf::replies_to<struct adopt_version>::with<struct acknowledged>,
    // From the trainer, before it begins another step. Answered once the stage's files of a
    // checkpoint are on the disk; steps go on meanwhile. Errors: io_failed naming the file,
    // cancelled where another such order came before the step was over.
    caf::replies_to<struct write_slice>::with<struct slice_written>,
    // From the trainer, after losses: for each lost stage that was replaced, for a lost feeder of
    // this stage, and finally once. Errors: stale if this stage no longer has what it sent in the
    // first step that is repeated; bad_config if edges are not logged.
    caf::replies_to<struct replace_neighbour>::with<struct acknowledged>,
    caf::replies_to<struct replace_feeder>::with<struct acknowledged>,
    caf::replies_to<struct resume_edges>::with<struct acknowledged>,
    // From the own optimizer and the own work thread.
    caf::reacts_to<struct state_shown>, caf::reacts_to<struct buffers_copied>>;

/// Keeps the last versions of stages, also of other nodes, so that a run can continue from them.
/// Lives on any node.
using keeper_actor = caf::typed_actor<
    // From a stage, piece after piece. Errors: bad_frame for a piece that is not due; stale for one
    // of a stage that was replaced, and lives.
    caf::replies_to<struct store_version>::with<struct acknowledged>,
    // The same, if the keeper is sent gradients. The last piece is answered once the version is
    // computed and kept. Errors: stale if the version before is not kept; bad_config for an
    // unknown optimizer or its options; bad_data for a version with another digest, or tensors of
    // other names.
    caf::replies_to<struct store_update>::with<struct acknowledged>,
    // From a stage, once it knows the keeper.
    caf::replies_to<struct describe_keeper>::with<struct keeper_described>,
    // From the trainer, and from a stage that loads a version. Errors: stale if it is not kept.
    caf::replies_to<struct list_versions>::with<struct versions_kept>,
    caf::replies_to<struct fetch_version>::with<struct version_piece>,
    // From the host of its node.
    caf::replies_to<struct forget_kept>::with<struct acknowledged>>;

/// Writes a stage's files of checkpoints, one checkpoint after another. Lives beside its stage.
using slice_writer_actor = caf::typed_actor<
    // From its stage. Errors: io_failed naming the file.
    caf::replies_to<struct store_slice>::with<struct slice_written>,
    // From the trainer, if this process does not see the folder; pieces in order. What was read to
    // its end is dropped. Errors: stale for another slice than the last.
    caf::replies_to<struct read_slice>::with<struct slice_piece>>;

/// Keeps files of checkpoints on a host's own disk: those of the host's stages, and copies of
/// another host's. Lives on any node.
using slice_store_actor = caf::typed_actor<
    // From the trainer, before a run resumes from a checkpoint.
    caf::replies_to<struct check_slices>::with<struct slices_checked>,
    // From the trainer, once the file is written on the host that it is copied from, or when a
    // stage here is to read it. Answered when the copy is on the disk. Errors: io_failed naming
    // the file; bad_data if its bytes differ; those of the store that it is copied from.
    caf::replies_to<struct copy_slice>::with<struct slice_copied>,
    // From the store that copies the file. Errors: bad_data naming it.
    caf::replies_to<struct read_slice_file>::with<struct slice_piece>,
    // From the trainer, after each checkpoint. Errors: io_failed.
    caf::replies_to<struct keep_manifest>::with<struct acknowledged>,
    caf::replies_to<struct keep_slices>::with<struct acknowledged>,
    // From a trainer that has lost its folder. Errors: io_failed.
    caf::replies_to<struct list_manifests>::with<struct manifests_kept>>;

/// Decides for all stages whether a training step is applied or skipped, and the next loss scale.
/// One per run, beside the pipeline.
using step_coordinator_actor = caf::typed_actor<
    // From each stage, once per training step or repeatedly; answered when all stages have voted.
    // Errors: bad_frame for an unknown stage, and for a vote that contradicts the stage's first;
    // stale for a step before its last, and for a stage that was replaced.
    caf::replies_to<struct step_vote>::with<struct step_decision>,
    // From the pipeline, before the replacement of a lost stage repeats its last steps.
    caf::replies_to<struct replace_voter>::with<struct acknowledged>,
    // From the pipeline. Errors: stale for a step that was decided on long ago, or not yet, unless
    // `when_decided` asks to wait for that.
    caf::replies_to<struct read_loss_scale>::with<struct loss_scale_now>>;

/// Owns a stage's parameters: nobody else writes them. Lives beside its stage.
using optimizer_actor = caf::typed_actor<
    // From the stage, once per update. Answered when it is applied. Errors: bad_config for
    // gradients that do not match, stale for a step out of order.
    caf::replies_to<struct apply_gradients>::with<struct gradients_applied>,
    // From the stage, if replicas shard the state: after an update, and once before the first.
    // Errors: bad_frame for values that do not match.
    caf::replies_to<struct replace_parameters>::with<struct acknowledged>,
    caf::reacts_to<struct keep_state_of>,
    // From the trainer by way of the stage, between steps. Errors: bad_data naming the tensor.
    caf::replies_to<struct load_state>::with<struct acknowledged>,
    caf::replies_to<struct read_state>::with<struct kept_state>,
    // From the stage, after an update and before the next.
    caf::replies_to<struct copy_state>::with<struct state_copied>>;

/// Sends inputs and labels to the two ends of the pipeline as their credits allow, and holds the
/// rest. Lives beside the reader of the batches; the pipeline bounds the number of steps in
/// progress.
using feeder_actor = caf::typed_actor<
    // From the reader of the batches, in the order of steps; from the pipeline, for a single step.
    caf::reacts_to<struct feed_batch>,
    // From the stages of the first and the last slice.
    caf::reacts_to<struct credit>,
    // From the pipeline: for each lost stage that was replaced, once the stages know its
    // replacement; and when steps are over.
    caf::replies_to<struct replace_neighbour>::with<struct acknowledged>,
    caf::reacts_to<struct forget_fed>>;

/// Owns the data set and reads its batches for the feeder. Lives with the trainer, or on the node
/// where the data are.
using data_actor = caf::typed_actor<
    // From the pipeline, for each replica in turn, if the actor was spawned without feeders: it
    // spawns one beside itself. For the first replica again: the feeders that it had end. Errors:
    // bad_config for another replica than the next.
    caf::replies_to<struct connect_data>::with<struct data_connected>,
    // From the trainer. Errors: bad_data (strict mode, or no readable sample in the batch),
    // bad_config without a feeder; here and below handler_failed for what was thrown, or what this
    // process lacks to read a sample.
    caf::replies_to<struct deliver_batch>::with<struct batch_delivered>,
    // From the trainer, at any time.
    caf::replies_to<struct describe_data>::with<struct data_described>,
    // From a trainer that needs some samples itself. Errors: bad_data.
    caf::replies_to<struct read_samples>::with<struct samples_read>>;

/// Answers one request of a host, in a thread of its own, where it may wait.
using scout_actor =
    caf::typed_actor<caf::replies_to<struct reach_nodes>::with<struct nodes_reached>,
                     caf::replies_to<struct listen_there>::with<struct listens_there>>;

/// The first actor of a stage process, published as "host".
using host_actor = caf::typed_actor<
    // From the trainer. Errors: bad_config (unknown model or optimizer), bad_data.
    caf::replies_to<struct build_stage>::with<struct stage_built>,
    // From the trainer, if this node is to read the data; again, if it is to open them again.
    // Errors: those of opening them; here and below handler_failed, also where a thread is refused.
    caf::replies_to<struct open_data>::with<struct data_opened>,
    // From the trainer of a run that can continue after losses: one keeper per node; and the end of
    // the stages built before.
    caf::replies_to<struct open_keeper>::with<struct keeper_opened>,
    // From the trainer, and from one that takes its place, which has the rest forgotten where it
    // does not go on from that.
    caf::replies_to<struct note_step>::with<struct acknowledged>,
    caf::replies_to<struct list_notes>::with<struct notes_kept>,
    caf::replies_to<struct forget_kept>::with<struct acknowledged>,
    caf::replies_to<struct drop_stages>::with<struct acknowledged>,
    // From the trainer of a run with checkpoints on the hosts' own disks: one store per folder.
    // Errors: io_failed naming the folder.
    caf::replies_to<struct open_slices>::with<struct slices_opened>,
    // From the trainer, before there are stages: which nodes this one does not reach, and what
    // memory it has left.
    caf::replies_to<struct reach_nodes>::with<struct nodes_reached>,
    caf::replies_to<struct ask_memory>::with<struct memory_told>,
    // From a trainer that has not started this process, before there are stages: where this node
    // could listen, and where it shall. Errors: address_unavailable, io_failed (no descriptor).
    caf::replies_to<struct ask_interfaces>::with<struct interfaces_told>,
    caf::replies_to<struct listen_there>::with<struct listens_there>,
    // From the trainer: the process's actors end and its main function returns.
    caf::reacts_to<struct shut_down>>;

/// One shard of a parameter server: nobody else writes its parameters. Lives on any node.
using shard_actor = caf::typed_actor<
    // From the coordinator itself, once, before anything else. Errors: bad_config for a second
    // coordinator; not_admitted from somebody else.
    caf::replies_to<struct connect_shard>::with<struct shard_directory>,
    // From that coordinator, here and below; from anybody else, or earlier: not_admitted, without
    // effect. From now on the worker may push; or none of its pushes is decided any more.
    caf::replies_to<struct admit_worker>::with<struct acknowledged>,
    caf::reacts_to<struct expel_worker>,
    // From the coordinator: its decisions on pushes, in the same order at every shard.
    caf::reacts_to<struct apply_pushes>, caf::reacts_to<struct refuse_push>,
    // From a worker, one after another, perhaps in pieces; a repeated push is applied once and
    // answered again. The answer comes when the push was decided on and, if it is applied, its
    // update is over. Errors: bad_data naming the parameter (unknown, shape, dtype, rows); stale
    // (too old); bad_frame (of a version that does not exist, out of sequence, repeated too often);
    // not_admitted (no member, or from another process than its first push); cancelled (the worker
    // left meanwhile); handler_failed (the arithmetic threw); peer_lost (the coordinator is gone).
    caf::replies_to<struct push_gradients>::with<struct gradients_pushed>,
    // From anybody; what takes more than one message, from members alone. Errors: bad_data for an
    // unknown parameter; not_admitted; bad_frame for a piece that is not due; handler_failed,
    // peer_lost as above.
    caf::replies_to<struct pull_parameters>::with<struct parameters_pulled>,
    // From the driver, while no push is under way; else pieces may be of different versions.
    // Errors: bad_frame for a place outside of the list or too many that wait, handler_failed,
    // peer_lost.
    caf::replies_to<struct read_shard_state>::with<struct shard_state_piece>,
    // From the shard's own work thread.
    caf::reacts_to<struct shard_updated>, caf::reacts_to<struct values_ready>>;

/// Decides, once for all shards, whether a push to a parameter server is applied or refused.
/// Watches its workers and shards. Lives on any node, best beside a shard.
using coordinator_actor = caf::typed_actor<
    // From a worker. The answer comes when every shard has admitted it. Errors: bad_config for a
    // rank that is taken, a presence that is a member, too many workers; cancelled if it left
    // meanwhile; peer_lost when a shard is gone.
    caf::replies_to<struct join_server>::with<struct server_joined>,
    // From a worker's process while no push is under way. Answered when the worker is no member
    // any more, or never was. Errors: not_admitted for another process's worker.
    caf::replies_to<struct leave_server>::with<struct acknowledged>,
    // From each shard about itself; from anybody else it is ignored.
    caf::reacts_to<struct staged_push>,
    // From anybody. Answered once there are no more members than it says.
    caf::replies_to<struct read_coordinator>::with<struct coordinator_report>>;

/// Trains its share of every step with a parameter server.
using worker_actor = caf::typed_actor<
    // From the driver, one at a time. The answer's `failure` says what was wrong with the data, the
    // arithmetic or the parameter server.
    caf::replies_to<struct run_share>::with<struct share_done>,
    // From the driver, between shares: the server's parameters and the worker's own buffers.
    // Errors: those of the parameter server.
    caf::replies_to<struct read_weights>::with<struct weights_piece>,
    // The same, of its buffers alone, which waits for no shard.
    caf::replies_to<struct read_buffers>::with<struct weights_piece>,
    // From the driver before the first share: buffers to take over; what does not come stays as it
    // is. Errors: bad_data naming a tensor, bad_frame.
    caf::replies_to<struct load_weights>::with<struct acknowledged>,
    // From the worker's own thread.
    caf::reacts_to<struct share_outcome>>;

/// The first actor of a process of a parameter server's run, published as "host".
using server_host_actor = caf::typed_actor<
    // From the driver. Errors: bad_config (unknown model or optimizer), bad_data, bad_frame for
    // values that are not due or not complete, and those of joining a parameter server.
    caf::replies_to<struct shard_values>::with<struct acknowledged>,
    caf::replies_to<struct build_shard>::with<struct shard_built>,
    caf::replies_to<struct open_coordinator>::with<struct coordinator_opened>,
    caf::replies_to<struct build_worker>::with<struct worker_built>,
    // From the driver, when it builds the server again.
    caf::replies_to<struct drop_server>::with<struct acknowledged>,
    // From the driver: the process's actors end and its main function returns.
    caf::reacts_to<struct shut_down>>;

}  // namespace troupe::actors
