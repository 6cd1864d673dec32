import re

from descend.lbann.driver.options import GROUPS, OPTIONS, help_text

# Options that LBANN's page on its command line names, without those of its tools for one project.
NAMES = (
    "prototext model optimizer reader metadata mini_batch_size num_epochs procs_per_trainer random_seed "
    "rand_seed checkpoint_dir ckpt_dir restart_dir load_model_weights_dir load_model_weights_dir_is_complete "
    "exit_after_setup generate_multi_proto disable_cuda serialize_io no_inplace no_backprop_disable "
    "disable_background_io_activity num_io_threads omp_num_threads max_io_thread_rngs data_filedir "
    "data_filedir_train data_filedir_validate data_filedir_test data_filename_train data_filename_validate "
    "data_filename_test label_filename_train label_filename_validate label_filename_test sample_list_train "
    "sample_list_validate sample_list_test data_reader_fraction absolute_sample_count use_data_store "
    "preload_data_store vocab sequence_length seq_len smiles_buffer_size z_score normalization "
    "keep_sample_order keep_packed_fields load_full_sample_list_once write_sample_list write_sample_label_list "
    "check_data quiet verbose ltfb_verbose multitrainer_verbose ltfb_allow_global_statistics "
    "ltfb_global_multitrainer_statistics rng_seeds_per_trainer_to_display print_affinity stack_trace_to_file "
    "disable_signal_handler trainer_grid_height trainer_primary_grid_size trainer_create_two_models "
    "trainer_enable_subgrid_async_comm trainer_enable_topo_aware_subgrid num-subgrids hydrogen_block_size "
    "disable_distconv init_shmem init_nvshmem disable-cudnn-tensor-ops use_gpu_direct_memory_in_forward_prop "
    "caliper caliper_config jag "
)


def test_the_help_has_every_option_that_lbanns_page_names():
    shown = set(re.findall(r"--([\w-]+)", help_text()))
    assert not [name for name in NAMES.split() if name not in shown]


def test_there_are_at_least_as_many_names_as_in_lbann():
    assert sum(1 + bool(option.also) for option in OPTIONS.values()) >= 104


def test_lines_of_the_help_fit_a_terminal():
    assert max(map(len, help_text().splitlines())) <= 140


def test_options_of_a_group_either_all_act_or_all_do_nothing():
    assert all(len({bool(option.help) for option in options}) == 1 for options in GROUPS.values())
